/* The C++ face: values, functions, tensors, modules, types. The argument is library.c, built. */
#include <ekiden/runtime.hpp>

#include <cstdio>
#include <cstdlib>

using namespace ekiden;

#define CHECK(...)                                                                    \
  do {                                                                                \
    if (!(__VA_ARGS__)) {                                                             \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #__VA_ARGS__); \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (0)

template <typename Body>
static void expect_error(const char* kind, const std::string& message, Body body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() == kind && error.what() == message) return;
    std::fprintf(stderr, "expected %s: %s\n   got %s: %s\n", kind, message.c_str(),
                 error.kind().c_str(), error.what());
    std::exit(1);
  }
  CHECK(!"an error is thrown");
}

static void values_have_the_types_of_the_language() {
  Value none, number(3), text("a longer string"), real(2.5), yes(true);
  CHECK(none.is_none() && number.as<int>() == 3 && real.as<double>() == 2.5 && yes.as<bool>());
  CHECK(text.as<std::string>() == "a longer string" && number.as<float>() == 3.0f);
  CHECK(number == Value(3) && number != Value(4) && Value("x") == Value(std::string("x")));
  CHECK(Value("x").hash() == Value(std::string("x")).hash());
  CHECK(number.as<std::optional<int>>() == 3 && !none.as<std::optional<int>>());
  CHECK(Value(std::vector<int>{1, 2, 3}).as<std::vector<int>>() == std::vector<int>{1, 2, 3});
  expect_error("TypeError", "read value: int expected, got a string", [&] { text.as<int>(); });
  expect_error("ValueError", "the int 300 does not fit", [] { Value(300).as<uint8_t>(); });
  expect_error("ValueError", "the int -1 does not fit", [] { Value(-1).as<uint64_t>(); });
}

static void containers_hold_values() {
  Array array{1, "two", 3.0};
  CHECK(array.size() == 3 && array[1].as<std::string>() == "two");
  expect_error("IndexError", "array: index 3", [&] { array[3]; });
  Map map{{"a", 1}, {"b", array}};
  CHECK(map.size() == 2 && map["a"].as<int>() == 1 && map["b"].as<Array>().same_as(array));
  CHECK(!map.find("c"));
  expect_error("KeyError", "map: there is no such key", [&] { map["c"]; });
  Shape shape{2, 3};
  CHECK(shape.size() == 2 && shape.begin()[1] == 3);
}

static void functions_take_and_give_typed_values() {
  auto add = Function::of([](int64_t a, double b) { return static_cast<double>(a) + b; }, "add");
  double sum = add(1, 2.5);
  CHECK(sum == 3.5);
  TypedFunction<double(int64_t, double)> typed = add;
  CHECK(typed(2, 1) == 3.0);
  auto count = Function::of([](Args args) { return static_cast<int64_t>(args.size()); });
  CHECK(count(1, "x", nullptr).as<int>() == 3 && count.call({1, 2}).as<int>() == 2);
  auto kept = Function::of([](Value value) { return value; });
  CHECK(kept("lent text that is copied").as<std::string>() == "lent text that is copied");
  auto apply = Function::of([](Function f, int64_t x) { return f(x); });
  CHECK(apply(Function::of([](int64_t x) { return 2 * x; }), 21).as<int>() == 42);
  TypedFunction<int64_t(int64_t)> wrong = Function::of([](int64_t) { return std::string("no"); });
  expect_error("TypeError", "result of function: int expected, got a string", [&] { wrong(1); });
  expect_error("TypeError", "add: 2 arguments expected, got 1", [&] { add(1); });
  expect_error("TypeError", "add: argument 0: int expected, got a string", [&] { add("x", 1); });
}

static void errors_cross_both_ways() {
  auto fail = Function::of([](int64_t which) {
    if (which == 0) throw Error("KeyError", "ours");
    if (which == 1) throw std::out_of_range("out");
    if (which == 2) throw std::invalid_argument("invalid");
    if (which == 3) throw std::bad_alloc();
    throw 7;
  });
  expect_error("KeyError", "ours", [&] { fail(0); });
  expect_error("IndexError", "out", [&] { fail(1); });
  expect_error("ValueError", "invalid", [&] { fail(2); });
  expect_error("MemoryError", "out of memory", [&] { fail(3); });
  expect_error("RuntimeError", "an exception of unknown type", [&] { fail(4); });
  expect_error("ValueError", "make tensor: dimension 0 must not be negative, got -1",
               [] { Tensor::empty({-1}, dtype_of<float>()); });
}

static void global_functions_have_names() {
  register_function("hpp.twice", [](int64_t x) { return 2 * x; });
  CHECK(Function::global("hpp.twice")(4).as<int>() == 8);
  expect_error("ValueError", "register function 'hpp.twice': the name is taken",
               [] { register_function("hpp.twice", [](int64_t x) { return x; }); });
  register_function("hpp.twice", [](int64_t x) { return 3 * x; }, true);
  CHECK(Function::global("hpp.twice")(4).as<int>() == 12);
  expect_error("KeyError", "there is no global function 'hpp.none'",
               [] { Function::global("hpp.none"); });
}

static void tensors_hold_elements() {
  Tensor tensor = Tensor::from<float>({2, 2}, {1, 2, 3, 4});
  CHECK(tensor.shape() == std::vector<int64_t>{2, 2} && tensor.size() == 4);
  CHECK(tensor.nbytes() == 16);
  CHECK(tensor.to(cpu).to_vector<float>() == std::vector<float>{1, 2, 3, 4});
  expect_error("TypeError", "read tensor: the elements have another dtype",
               [&] { tensor.data<double>(); });
  expect_error("ValueError", "make tensor: 4 elements expected, got 1",
               [] { Tensor::from<float>({2, 2}, {1}); });
  auto first = Function::of([](Tensor t) { return t.data<float>()[0]; });
  CHECK(first(tensor).as<float>() == 1.0f && first(&tensor.dl()).as<float>() == 1.0f);
}

static void modules_give_functions(const char* path) {
  Module module = Module::load(path);
  CHECK(module.kind() == "library" && module.implements("add_one") && !module.find("nothing"));
  CHECK(module["add_one"](41).as<int>() == 42 && module.names().empty());
  expect_error("AttributeError", "module: no function named 'nothing'; there are ",
               [&] { module["nothing"]; });
  Module other = Module::load(path);
  module.import(other);
  CHECK(module.imports().size() == 1 && module.imports()[0].same_as(other));
}

struct Point : Object {
  int32_t x = 1;
  uint8_t small = 2;
  bool is_set = false;
  float weight = 0.5f;
  std::string name = "point";
  Ref<Point> next;
  Value any;
  std::vector<int64_t> dims;
  int64_t sum(int64_t more) const { return x + more; }
  void move(int32_t by) { x += by; }
};

struct Deep : Point {
  double depth = 0;
};

static int alive;

struct Counted : Object {
  Counted() { alive++; }
  ~Counted() { alive--; }
};

static void types_are_seen_by_the_runtime() {
  define<Point>("hpp.Point")
      .doc("a point")
      .field("x", &Point::x)
      .field("small", &Point::small)
      .field("is_set", &Point::is_set)
      .field("weight", &Point::weight)
      .field("name", &Point::name, 0, "what it is called")
      .field("next", &Point::next)
      .field("any", &Point::any)
      .field("dims", &Point::dims, EK_FIELD_READ_ONLY)
      .method("sum", &Point::sum)
      .method("move", &Point::move)
      .method("both", [](Ref<Point> a, Ref<Point> b) { return a->x + b->x; });
  define<Deep, Point>("hpp.Deep").field("depth", &Deep::depth);
  Ref<Point> point = make<Point>(), other = make<Deep>();
  CHECK(point.type_key() == "hpp.Point" && get_field(point, "x").as<int>() == 1);
  set_field(point, "x", 7);
  set_field(point, "small", 255);
  set_field(point, "weight", 2);
  set_field(point, "name", "renamed, and longer than before");
  set_field(point, "next", other);
  set_field(point, "any", Array{1, 2});
  CHECK(point->x == 7 && point->small == 255 && point->weight == 2.0f);
  CHECK(point->next.same_as(other));
  CHECK(point->name == "renamed, and longer than before" && point->any.as<Array>().size() == 2);
  CHECK(get_field(other, "depth").as<double>() == 0 && get_field(other, "x").as<int>() == 1);
  expect_error("ValueError", "set field 'small' of 'hpp.Point': 256 does not fit",
               [&] { set_field(point, "small", 256); });
  expect_error("TypeError", "set field 'dims' of 'hpp.Point': it can only be read",
               [&] { set_field(point, "dims", Array{}); });
  expect_error("AttributeError", "'hpp.Point' has no field 'y'", [&] { get_field(point, "y"); });
  ADT pair(3, {Value(7), Value(8)});
  CHECK(get_field(pair, "tag").as<int>() == 3 && get_field(pair, "1").as<int>() == 8);
  expect_error("AttributeError", "an ADT of 2 fields has 'tag' and their numbers, not '2'",
               [&] { get_field(pair, "2"); });
  const ek_type_info* info = ek_type_get(type_index_of<Point>());
  Function sum(ObjectRef::borrow(info->methods[0].function));
  CHECK(std::string(info->methods[0].name) == "sum" && sum(point, 3).as<int>() == 10);
  Function(ObjectRef::borrow(info->methods[1].function))(point, 2);
  CHECK(point->x == 9);
  CHECK(Function(ObjectRef::borrow(info->methods[2].function))(point, other).as<int>() == 10);
  CHECK(Value(make<Point>()) == Value(make<Point>()) && Value(point) != Value(make<Point>()));
}

static void objects_are_made_by_key_and_die_once() {
  ek_object* made = nullptr;
  define<Counted>("hpp.Counted");
  detail::check(ek_object_new(ek_type_index("hpp.Counted"), nullptr, 0, &made));
  CHECK(alive == 1);
  Ref<Counted> counted(ObjectRef::take(made));
  Weak<Ref<Counted>> weak(counted);
  CHECK(weak.lock().same_as(counted));
  counted = {};
  CHECK(alive == 0 && !weak.lock());
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  values_have_the_types_of_the_language();
  containers_hold_values();
  functions_take_and_give_typed_values();
  errors_cross_both_ways();
  global_functions_have_names();
  tensors_hold_elements();
  modules_give_functions(argv[1]);
  types_are_seen_by_the_runtime();
  objects_are_made_by_key_and_die_once();
  return 0;
}
