/* C++'s part of bindings/conformance.json: `conformance FOLDER`. */
#include <cmath>
#include <ekiden/runtime.hpp>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

namespace {

/* JSON, as much of it as the script needs; it is trusted. --------------------------------------- */

struct Json {
  enum Kind { none, boolean, number, text, list, map } kind = none;
  double value = 0;
  std::string string;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> pairs;

  const Json* find(const std::string& key) const {
    for (const auto& [name, each] : pairs) {
      if (name == key) return &each;
    }
    return nullptr;
  }
  const Json& operator[](const std::string& key) const {
    const Json* found = find(key);
    if (found == nullptr) throw std::logic_error("no " + key);
    return *found;
  }
};

class Reader {
 public:
  explicit Reader(std::string text) : text_(std::move(text)) {}

  Json read() {
    Json made;
    char first = peek();
    if (first == '{') {
      made.kind = Json::map;
      for (at_++; peek() != '}';) {
        std::string key = string();
        skip(':');
        made.pairs.emplace_back(key, read());
        if (peek() == ',') at_++;
      }
      at_++;
    } else if (first == '[') {
      made.kind = Json::list;
      for (at_++; peek() != ']';) {
        made.items.push_back(read());
        if (peek() == ',') at_++;
      }
      at_++;
    } else if (first == '"') {
      made.kind = Json::text;
      made.string = string();
    } else if (first == 't' || first == 'f' || first == 'n') {
      made.kind = first == 'n' ? Json::none : Json::boolean;
      made.value = first == 't' ? 1 : 0;
      at_ += first == 'f' ? 5 : 4;
    } else {
      size_t length = 0;
      made.kind = Json::number;
      made.value = std::stod(text_.substr(at_, 40), &length);
      at_ += length;
    }
    return made;
  }

 private:
  char peek() {
    while (std::isspace(static_cast<unsigned char>(text_.at(at_)))) at_++;
    return text_.at(at_);
  }
  void skip(char wanted) {
    if (peek() != wanted) throw std::logic_error("json: at " + std::to_string(at_));
    at_++;
  }
  std::string string() {
    std::string made;
    for (skip('"'); text_.at(at_) != '"'; at_++) {
      char next = text_[at_];
      if (next == '\\') next = text_.at(++at_) == 'n' ? '\n' : text_[at_];
      if (text_[at_] == 'u' && text_[at_ - 1] == '\\') { /* letters of Latin-1 alone */
        int code = std::stoi(text_.substr(at_ + 1, 4), nullptr, 16);
        at_ += 4;
        made += static_cast<char>(0xc0 | code >> 6);
        next = static_cast<char>(0x80 | (code & 63));
      }
      made += next;
    }
    at_++;
    return made;
  }

  std::string text_;
  size_t at_ = 0;
};

/* Values ---------------------------------------------------------------------------------------- */

using ekiden::Error;
using ekiden::Function;
using ekiden::Tensor;
using ekiden::Value;

Value doubled(ekiden::Args args) {
  Value x = args[0];
  if (x.is<std::string>()) return x.as<std::string>() + x.as<std::string>();
  if (x.raw().type_index == EK_INT) return 2 * x.as<int64_t>();
  return 2 * x.as<double>();
}

Value apply(ekiden::Args args) {
  std::vector<Value> rest;
  for (size_t i = 1; i < args.size(); i++) rest.push_back(args[i]);
  return args[0].as<Function>().call(rest);
}

Function callback(const std::string& name) {
  if (name == "double") return Function::of(doubled, name);
  if (name == "echo") return Function::of([](Value x) { return x; }, name);
  if (name == "apply") return Function::of(apply, name);
  if (name == "sum") {
    return Function::of(
        [](Tensor x) {
          double sum = 0;
          for (float each : x.to_vector<float>()) sum += static_cast<double>(each);
          return sum;
        },
        name);
  }
  return Function::of([]() -> int64_t { throw Error("ValueError", "told to fail"); }, name);
}

std::vector<int64_t> shape_of(const Json& json) {
  std::vector<int64_t> shape;
  for (const Json& each : json["shape"].items) shape.push_back(static_cast<int64_t>(each.value));
  return shape;
}

template <typename T>
Tensor tensor_of(const Json& json, ek_dtype dtype) {
  Tensor made = Tensor::empty(shape_of(json), dtype);
  auto* to = static_cast<T*>(ek_dltensor_data(&made.dl()));
  for (const Json& each : json["data"].items) *to++ = static_cast<T>(each.value);
  return made;
}

Tensor tensor(const Json& json) {
  const std::string& dtype = json["tensor"].string;
  if (dtype == "float32") return tensor_of<float>(json, ekiden::dtype_of<float>());
  if (dtype == "float64") return tensor_of<double>(json, ekiden::dtype_of<double>());
  if (dtype == "int32") return tensor_of<int32_t>(json, ekiden::dtype_of<int32_t>());
  if (dtype == "int64") return tensor_of<int64_t>(json, ekiden::dtype_of<int64_t>());
  if (dtype == "int8") return tensor_of<int8_t>(json, ekiden::dtype_of<int8_t>());
  if (dtype == "bool") return tensor_of<uint8_t>(json, ekiden::dtype_of<bool>());
  return tensor_of<uint8_t>(json, ekiden::dtype_of<uint8_t>());
}

std::vector<Value> values(const Json& list);

Value value(const Json& json) {
  if (json.find("tensor") != nullptr) return tensor(json);
  const auto& [kind, inside] = json.pairs.at(0);
  if (kind == "none") return nullptr;
  if (kind == "int") return static_cast<int64_t>(inside.value);
  if (kind == "float") return inside.value;
  if (kind == "bool") return inside.value != 0;
  if (kind == "str") return inside.string;
  if (kind == "callback") return callback(inside.string);
  return ekiden::Array(values(inside));
}

std::vector<Value> values(const Json& list) {
  std::vector<Value> made;
  for (const Json& each : list.items) made.push_back(value(each));
  return made;
}

/* The items of an array or a tuple. */
std::vector<Value> items_of(const Value& value) {
  if (value.is<ekiden::ADT>()) return value.as<ekiden::ADT>().fields();
  std::vector<Value> items;
  ekiden::Array array = value;
  for (size_t i = 0; i < array.size(); i++) items.push_back(array[i]);
  return items;
}

bool same(const Value& got, const Value& wanted) {
  if (wanted.is<ekiden::Array>()) {
    if (!got.is<ekiden::ADT>() && !got.is<ekiden::Array>()) return false;
    std::vector<Value> a = items_of(got), b = items_of(wanted);
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); i++) {
      if (!same(a[i], b[i])) return false;
    }
    return true;
  }
  return got == wanted; /* tensors by dtype, shape and elements: the script's are exact */
}

template <typename Names>
Value texts(const Names& names) {
  return ekiden::Array(std::vector<Value>(names.begin(), names.end()));
}

/* Steps ----------------------------------------------------------------------------------------- */

struct Thing {
  std::optional<ekiden::Module> module;
  std::optional<ekiden::Model> model;
  ekiden::ObjectRef object;
};

class Runner {
 public:
  explicit Runner(std::string folder) : folder_(std::move(folder)) {}

  Value run(const Json& step) {
    const std::string& op = step["op"].string;
    Thing* of = step.find("of") == nullptr ? nullptr : &things_[step["of"].string];
    if (op == "open") return open(step["path"].string, step["as"].string);
    if (op == "functions") return texts(module(*of).names());
    if (op == "inputs") return texts(of->model->inputs());
    if (op == "call") return module(*of)[step["function"].string].call(values(step["args"]));
    if (op == "run") return of->model->run(inputs(step));
    if (op == "run_into") return run_into(*of->model, step);
    if (op == "overwrite") return overwrite(module(*of)["main"], step["size"].value);
    if (op == "kernels") return static_cast<int64_t>(of->model->profile(inputs(step)).size());
    if (op == "threads") {
      of->model->num_threads(static_cast<int64_t>(step["n"].value));
      return of->model->num_threads();
    }
    if (op == "device") {
      ek_device device = tensor(step["value"]).device();
      return ekiden::Array({int64_t{device.type}, int64_t{device.id}});
    }
    if (op == "global") return global(step["name"].string).call(values(step["args"]));
    if (op == "register") {
      Function made = callback(step["callback"].string);
      ekiden::detail::check(ek_registry_set(step["name"].string.c_str(), made.get(), 0));
      return nullptr;
    }
    if (op == "remove") return ek_registry_remove(step["name"].string.c_str()) == 1;
    if (op == "define") return define(step);
    if (op == "new") return create(step);
    if (op == "type") return of->object.type_key();
    if (op == "fields") return fields(of->object);
    if (op == "get") return get(of->object, step["field"].string);
    if (op == "set") return set(of->object, step["field"].string, value(step["value"]));
    if (op == "equal") {
      return Value(things_[step["a"].string].object) == Value(things_[step["b"].string].object);
    }
    if (op != "close") throw std::logic_error("no step " + op);
    *of = Thing{};
    return nullptr;
  }

 private:
  static const ekiden::Module& module(const Thing& of) {
    if (!of.module) throw Error("ValueError", "the module is closed");
    return *of.module;
  }

  Value open(const std::string& path, const std::string& as) {
    Thing made;
    made.module = ekiden::Module::load(folder_ + "/" + path);
    bool is_model = path.size() > 4 && path.compare(path.size() - 4, 4, ".eki") == 0;
    if (is_model) made.model = ekiden::Model(*made.module);
    things_[as] = made;
    return nullptr;
  }

  static ekiden::Model::Inputs inputs(const Json& step) {
    ekiden::Model::Inputs made;
    for (const auto& [name, each] : step["inputs"].pairs) made.emplace_back(name, tensor(each));
    return made;
  }

  /* Named outputs in memory of the caller are the caller's copy in C++. */
  static Value run_into(const ekiden::Model& model, const Json& step) {
    std::vector<Value> outputs = values(step["outputs"]);
    std::vector<Value> results = items_of(model.run(inputs(step)));
    if (results.size() != outputs.size()) {
      throw Error("ValueError", "expected " + std::to_string(results.size()) + " outputs");
    }
    for (size_t i = 0; i < results.size(); i++) {
      Tensor from = results[i], to = outputs[i];
      from.copy_to(to);
    }
    return ekiden::Array(outputs);
  }

  static Value overwrite(const Function& function, double size) {
    std::vector<float> elements(static_cast<size_t>(size));
    for (size_t i = 0; i < elements.size(); i++) elements[i] = static_cast<float>(i);
    Tensor x = Tensor::from<float>({static_cast<int64_t>(size)}, elements);
    std::vector<std::vector<float>> first;
    std::vector<Value> results = items_of(function.call({x}));
    for (const Value& result : results) first.push_back(result.as<Tensor>().to_vector<float>());
    bool is_right = true;
    for (size_t i = 0; i < results.size(); i++) {
      Tensor result = results[i];
      is_right = is_right && result.to_vector<float>() == first[i];
      std::fill_n(result.data<float>(), result.size(), 9.0f);
    }
    results = items_of(function.call({x}));
    for (size_t i = 0; i < results.size(); i++) {
      is_right = is_right && results[i].as<Tensor>().to_vector<float>() == first[i];
    }
    return is_right;
  }

  static Function global(const std::string& name) {
    ek_object* found = ek_registry_get(name.c_str());
    if (found == nullptr) throw Error("KeyError", "there is no function '" + name + "'");
    return Function(ekiden::ObjectRef::take(found));
  }

  static Value define(const Json& step) {
    static const std::map<std::string, int32_t> kinds{
        {"any", EK_ANY}, {"int", EK_INT}, {"float", EK_FLOAT}, {"bool", EK_BOOL}};
    std::vector<ek_field> fields;
    for (const Json& row : step["fields"].items) {
      ek_field field{};
      field.name = row.items[0].string.c_str();
      field.type = kinds.at(row.items[1].string);
      fields.push_back(field);
    }
    ek_type_def def{};
    def.fields = fields.data();
    def.n_fields = static_cast<int32_t>(fields.size());
    int32_t index = ek_type_register(step["type"].string.c_str(), EK_OBJECT);
    ekiden::detail::check(index);
    ekiden::detail::check(ek_type_define(index, &def));
    return nullptr;
  }

  Value create(const Json& step) {
    const std::string& key = step["type"].string;
    int32_t index = ek_type_index(key.c_str());
    if (index < 0) throw Error("TypeError", "there is no type '" + key + "'");
    std::vector<Value> given = values(step["values"]);
    ek_object* made = nullptr;
    ekiden::detail::check(ek_object_new(index, reinterpret_cast<const ek_value*>(given.data()),
                                        static_cast<int32_t>(given.size()), &made));
    things_[step["as"].string].object = ekiden::ObjectRef::take(made);
    return nullptr;
  }

  static Value fields(const ekiden::ObjectRef& object) {
    const ek_type_info* info = ek_type_get(object.get()->type_index);
    std::vector<std::string> names;
    for (int32_t i = 0; i < info->n_fields; i++) names.emplace_back(info->fields[i].name);
    return texts(names);
  }

  static const ek_field& field(const ekiden::ObjectRef& object, const std::string& name) {
    const ek_type_info* info = ek_type_get(object.get()->type_index);
    for (int32_t i = 0; i < info->n_fields; i++) {
      if (name == info->fields[i].name) return info->fields[i];
    }
    throw Error("AttributeError", "'" + object.type_key() + "' has no field '" + name + "'");
  }

  static Value get(const ekiden::ObjectRef& object, const std::string& name) {
    ek_value out = ek_value_none();
    ekiden::detail::check(ek_field_get(object.get(), &field(object, name), &out));
    return Value::take(out);
  }

  static Value set(const ekiden::ObjectRef& object, const std::string& name, const Value& to) {
    ekiden::detail::check(ek_field_set(object.get(), &field(object, name), &to.raw()));
    return nullptr;
  }

  std::string folder_;
  std::map<std::string, Thing> things_;
};

std::string judge(Runner& runner, const Json& step) {
  const Json* fails = step.find("fails");
  try {
    Value got = runner.run(step);
    if (fails != nullptr) return "did not fail";
    const Json* wanted = step.find("is");
    return wanted == nullptr || same(got, value(*wanted)) ? "" : "gave something else";
  } catch (const Error& error) {
    bool is_right = fails != nullptr && error.kind() == (*fails)["kind"].string &&
                    std::string(error.what()).find((*fails)["message"].string) != std::string::npos;
    return is_right ? "" : error.kind() + ": " + error.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(std::string(argv[1]) + "/conformance.json");
  std::stringstream text;
  text << file.rdbuf();
  Json script = Reader(text.str()).read();
  int steps = 0, wrong = 0;
  for (const Json& each : script["cases"].items) {
    Runner runner(argv[1]);
    for (const Json& step : each["steps"].items) {
      const Json* times = step.find("times");
      std::string why;
      for (double i = 0; i < (times == nullptr ? 1 : times->value) && why.empty(); i++) {
        why = judge(runner, step);
      }
      steps++;
      if (why.empty()) continue;
      std::cout << each["name"].string << ": " << step["op"].string << ", step " << steps << ": "
                << why << "\n";
      wrong++;
    }
  }
  std::cout << steps << " steps\n";
  return wrong == 0 ? 0 : 1;
}
