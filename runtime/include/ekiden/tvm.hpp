/* TVM's C++ names over runtime.hpp: what programs write that register functions and types.
**
**   void MyAdd(TVMArgs args, TVMRetValue* rv) { *rv = int(args[0]) + int(args[1]); }
**   TVM_REGISTER_GLOBAL("myadd").set_body(MyAdd);
**
**   class MyExprNode : public Object {
**    public:
**     int value;
**     void VisitAttrs(AttrVisitor* v) { v->Visit("value", &value); }
**     static constexpr const char* _type_key = "myns.MyExpr";
**     TVM_DECLARE_FINAL_OBJECT_INFO(MyExprNode, Object);
**   };
**   class MyExpr : public ObjectRef {
**    public:
**     TVM_DEFINE_OBJECT_REF_METHODS(MyExpr, ObjectRef, MyExprNode);
**   };
**   TVM_REGISTER_OBJECT_TYPE(MyExprNode);
**
** What VisitAttrs visits are the fields of the type for every language. Libraries that register
** something are loaded with ek_module_load, and stay; an error of registering is that of loading.
*/
#ifndef EKIDEN_TVM_HPP_
#define EKIDEN_TVM_HPP_

#include <cstdio>
#include <iostream>

#include "ekiden/runtime.hpp"

namespace tvm {
namespace runtime {

using ekiden::Error;
using ekiden::Module;
using NDArray = ekiden::Tensor;
using Device = ekiden::Value;

/* 1. Functions --------------------------------------------------------------------------------- */

using TVMArgValue = ekiden::Value;

class TVMArgs : public ekiden::Args {
 public:
  explicit TVMArgs(const ekiden::Args& args) : ekiden::Args(args) {}
};

class TVMRetValue : public ekiden::Value {
 public:
  template <typename T>
  TVMRetValue& operator=(T&& from) {
    ekiden::Value::operator=(ekiden::Value(std::forward<T>(from)));
    return *this;
  }
};

/* A function of any language. */
class PackedFunc : public ekiden::Function {
 public:
  PackedFunc() = default;
  explicit PackedFunc(ekiden::ObjectRef object) : Function(std::move(object)) {}
  template <typename F, typename = std::enable_if_t<std::is_invocable_v<F, TVMArgs, TVMRetValue*>>>
  explicit PackedFunc(F body, std::string name = "function")
      : Function(Function::of(
            [body](ekiden::Args args) {
              TVMRetValue result;
              body(TVMArgs(args), &result);
              return ekiden::Value::take(result.release());
            },
            std::move(name))) {}
};

template <typename Signature>
using TypedPackedFunc = ekiden::TypedFunction<Signature>;

namespace detail {

/* The first error of what static objects registered: a library's __ek_init reports it. */
inline std::string& registering_failed() {
  static std::string text;
  return text;
}

template <typename Body>
void registering(Body&& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    if (registering_failed().empty()) registering_failed() = error.what();
  }
}

}  // namespace detail

/* Names a function that is registered; its last call does it. */
class Registry {
 public:
  static Registry Register(const std::string& name, bool can_override = false) {
    return Registry(name, can_override);
  }
  /* The global function of a name, empty when there is none. */
  static PackedFunc Get(const std::string& name) {
    ek_object* found = ek_registry_get(name.c_str());
    return found == nullptr ? PackedFunc() : PackedFunc(ekiden::ObjectRef::take(found));
  }
  template <typename F>
  Registry& set_body(F body) {
    detail::registering([&] {
      PackedFunc made(std::move(body), name_);
      ekiden::detail::check(ek_registry_set(name_.c_str(), made.get(), can_override_ ? 1 : 0));
    });
    return *this;
  }
  /* The types of parameters say how arguments are read. */
  template <typename F>
  Registry& set_body_typed(F body) {
    detail::registering(
        [&] { ekiden::register_function(name_, std::move(body), can_override_); });
    return *this;
  }

 private:
  Registry(std::string name, bool can_override)
      : name_(std::move(name)), can_override_(can_override) {}
  std::string name_;
  bool can_override_;
};

/* 2. Objects ----------------------------------------------------------------------------------- */

class DataType {
 public:
  DataType() : DataType(EK_DTYPE_FLOAT, 32) {}
  DataType(int code, int bits, int lanes = 1)
      : data_{static_cast<uint8_t>(code), static_cast<uint8_t>(bits),
              static_cast<uint16_t>(lanes)} {}
  static DataType Int(int bits, int lanes = 1) { return DataType(EK_DTYPE_INT, bits, lanes); }
  static DataType UInt(int bits, int lanes = 1) { return DataType(EK_DTYPE_UINT, bits, lanes); }
  static DataType Float(int bits, int lanes = 1) { return DataType(EK_DTYPE_FLOAT, bits, lanes); }
  int code() const { return data_.code; }
  int bits() const { return data_.bits; }
  int lanes() const { return data_.lanes; }
  operator ek_dtype() const { return data_; }

 private:
  ek_dtype data_;
};

class AttrVisitor;

/* The head of objects: derive from it, and declare, define and register with the macros below. */
class Object : public ekiden::Object {
 public:
  virtual ~Object() = default;
  virtual void VisitAttrs(AttrVisitor*) {}
  static int32_t RuntimeTypeIndex() { return EK_OBJECT; }
};

class ObjectRef : public ekiden::ObjectRef {
 public:
  ObjectRef() = default;
  explicit ObjectRef(ekiden::ObjectRef object) : ekiden::ObjectRef(std::move(object)) {}
  bool defined() const { return static_cast<bool>(*this); }
  /* The object as one of a type, NULL when it is none. */
  template <typename T>
  const T* as() const {
    const ek_object* object = get();
    bool is_it = object != nullptr && ek_type_is(object->type_index, T::RuntimeTypeIndex());
    return is_it ? static_cast<const T*>(object) : nullptr;
  }
};

template <typename T>
using ObjectPtr = ekiden::Ref<T>;

template <typename T, typename... A>
ObjectPtr<T> make_object(A&&... args) {
  return ekiden::make<T>(std::forward<A>(args)...);
}

/* An array of values of one type. */
template <typename T>
class Array : public ObjectRef {
 public:
  Array() : Array(std::vector<T>{}) {}
  explicit Array(ekiden::ObjectRef object) : ObjectRef(std::move(object)) {}
  Array(std::initializer_list<T> items) : Array(std::vector<T>(items)) {}
  explicit Array(const std::vector<T>& items)
      : ObjectRef(ekiden::Array(std::vector<ekiden::Value>(items.begin(), items.end()))) {}
  static constexpr int32_t type_index() { return EK_ARRAY; }

  size_t size() const { return static_cast<size_t>(raw()->size); }
  T operator[](size_t index) const {
    if (index >= size()) throw Error("IndexError", "array: index " + std::to_string(index));
    return ekiden::Value::borrow(raw()->data[index]).template as<T>();
  }

 private:
  const ek_array* raw() const { return reinterpret_cast<const ek_array*>(get()); }
};

/* What VisitAttrs shows its members to. */
class AttrVisitor {
 public:
  virtual ~AttrVisitor() = default;
  virtual void Visit(const char* key, double* value) = 0;
  virtual void Visit(const char* key, int64_t* value) = 0;
  virtual void Visit(const char* key, uint64_t* value) = 0;
  virtual void Visit(const char* key, int* value) = 0;
  virtual void Visit(const char* key, bool* value) = 0;
  virtual void Visit(const char* key, std::string* value) = 0;
  virtual void Visit(const char* key, void** value) = 0;
  virtual void Visit(const char* key, DataType* value) = 0;
  virtual void Visit(const char* key, NDArray* value) = 0;
  virtual void Visit(const char* key, ObjectRef* value) = 0;
};

namespace detail {

/* Makes fields of the members of an object, whose header is at 'head'. */
class Fields : public AttrVisitor {
 public:
  Fields(const ek_object* head, int32_t parent) : head_(head), parent_(ek_type_get(parent)) {}
  std::vector<ek_field> made;

  void Visit(const char* key, double* value) override { member(key, value); }
  void Visit(const char* key, int64_t* value) override { member(key, value); }
  void Visit(const char* key, uint64_t* value) override {
    add(key, value, EK_INT); /* eight bytes, as they are */
  }
  void Visit(const char* key, int* value) override { member(key, value); }
  void Visit(const char* key, bool* value) override { member(key, value); }
  void Visit(const char* key, std::string* value) override { member(key, value); }
  void Visit(const char* key, void** value) override {
    ek_field& field = add(key, value, EK_OPAQUE_PTR);
    field.get = get_pointer;
    field.set = set_pointer;
  }
  void Visit(const char* key, DataType* value) override { add(key, value, EK_DTYPE); }
  void Visit(const char* key, NDArray* value) override { add(key, value, EK_TENSOR); }
  void Visit(const char* key, ObjectRef* value) override { add(key, value, EK_OBJECT); }

 private:
  static_assert(sizeof(ObjectRef) == sizeof(ek_object*), "a reference is a pointer");
  static_assert(sizeof(DataType) == sizeof(ek_dtype), "a dtype is one of the runtime");

  int64_t offset(const void* value) const {
    return static_cast<const char*>(value) - reinterpret_cast<const char*>(head_);
  }
  bool is_inherited(const char* key) const {
    for (int32_t i = 0; i < parent_->n_fields; i++) {
      if (std::strcmp(parent_->fields[i].name, key) == 0) return true;
    }
    return false;
  }
  void keep(const char* key, const ek_field& field) {
    if (!is_inherited(key)) made.push_back(field);
  }
  template <typename M>
  void member(const char* key, M* value) {
    keep(key, ekiden::detail::Member<M>::field(key, offset(value)));
  }
  template <typename M>
  ek_field& add(const char* key, M* value, int32_t type) {
    ek_field field{};
    field.name = key;
    field.type = type;
    field.size = static_cast<int32_t>(sizeof(M));
    field.offset = offset(value);
    field.flags = EK_FIELD_DEFAULT;
    field.standard.type_index = EK_ANY;
    spare_ = field;
    if (is_inherited(key)) return spare_;
    made.push_back(field);
    return made.back();
  }
  static int get_pointer(const ek_object* self, const ek_field* field, ek_value* out) {
    *out = ek_value_none();
    out->type_index = EK_OPAQUE_PTR;
    out->v.ptr = ekiden::detail::Member<void*>::at(self, field);
    return 0;
  }
  static int set_pointer(ek_object* self, const ek_field* field, const ek_value* value) {
    if (value->type_index != EK_OPAQUE_PTR && value->type_index != EK_NONE) {
      return ek_error("TypeError", "set field '%s': a pointer expected", field->name);
    }
    ekiden::detail::Member<void*>::at(self, field) = value->v.ptr;
    return 0;
  }

  const ek_object* head_;
  const ek_type_info* parent_;
  ek_field spare_{};
};

/* Registers a type, and defines it by what VisitAttrs visits. Its index. */
template <typename T, typename Parent>
int32_t type_of() {
  int32_t index = ek_type_register(T::_type_key, Parent::RuntimeTypeIndex());
  ekiden::detail::check(index);
  ekiden::detail::TypeOf<T>::index = index;
  if (ek_type_get(index)->is_defined) return index;
  ek_type_def def{};
  if constexpr (std::is_default_constructible_v<T> && !std::is_abstract_v<T>) {
    T standard;
    Fields fields(static_cast<const ek_object*>(&standard), Parent::RuntimeTypeIndex());
    standard.VisitAttrs(&fields);
    def.size = static_cast<int64_t>(sizeof(T));
    def.create = ekiden::detail::create<T>;
    def.fields = fields.made.data();
    def.n_fields = static_cast<int32_t>(fields.made.size());
    ekiden::detail::check(ek_type_define(index, &def));
  }
  return index;
}

/* Registers when a library is loaded. */
template <typename T>
bool register_type() {
  registering([] { T::RuntimeTypeIndex(); });
  return true;
}

}  // namespace detail
}  // namespace runtime

using runtime::Array;
using runtime::AttrVisitor;
using runtime::DataType;
using runtime::Object;
using runtime::ObjectPtr;
using runtime::ObjectRef;
using runtime::PackedFunc;
using runtime::Registry;
using runtime::TVMArgs;
using runtime::TVMRetValue;
using runtime::make_object;
using Type = runtime::DataType;

}  // namespace tvm

#define TVM_STR_CONCAT_(a, b) a##b
#define TVM_STR_CONCAT(a, b) TVM_STR_CONCAT_(a, b)

#define TVM_REGISTER_GLOBAL(name)                                                       \
  [[maybe_unused]] static auto TVM_STR_CONCAT(ekiden_registered_, __COUNTER__) =        \
      ::tvm::runtime::Registry::Register(name)

/* Inside of a class; _type_key is its key. */
#define TVM_DECLARE_BASE_OBJECT_INFO(type, parent)                                      \
  static int32_t RuntimeTypeIndex() {                                                   \
    static int32_t index = ::tvm::runtime::detail::type_of<type, parent>();             \
    return index;                                                                       \
  }                                                                                     \
  static int32_t _GetOrAllocRuntimeTypeIndex() { return RuntimeTypeIndex(); }
#define TVM_DECLARE_FINAL_OBJECT_INFO(type, parent) TVM_DECLARE_BASE_OBJECT_INFO(type, parent)

#define TVM_REGISTER_OBJECT_TYPE(type)                                                  \
  [[maybe_unused]] static bool TVM_STR_CONCAT(ekiden_registered_, __COUNTER__) =        \
      ::tvm::runtime::detail::register_type<type>()

#define TVM_DEFINE_OBJECT_REF_METHODS(name, parent, node)                               \
  name() = default;                                                                     \
  explicit name(::ekiden::ObjectRef object) : parent(std::move(object)) {}              \
  const node* operator->() const { return static_cast<const node*>(get()); }            \
  static int32_t type_index() { return node::RuntimeTypeIndex(); }                      \
  using ContainerType = node

/* What ek_module_load calls: by now all static objects have registered. */
extern "C" __attribute__((weak, visibility("default"))) int __ek_init(void) {
  const std::string& text = ::tvm::runtime::detail::registering_failed();
  return text.empty() ? 0 : ek_error("ValueError", "%s", text.c_str());
}

#endif  // EKIDEN_TVM_HPP_
