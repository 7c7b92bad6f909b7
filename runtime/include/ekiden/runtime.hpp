/* Ekiden for C++17: values, functions, tensors, modules and objects with the types of the language.
**
** Nothing is compiled for it but this header; link with the library of runtime.h. What that header
** says holds here too. Errors are exceptions: a call that fails throws ekiden::Error, and one that
** leaves a function given to the runtime becomes the error of that call, with its kind.
**
**   ekiden::Module model = ekiden::Module::load("model.so");
**   ekiden::Tensor y = model["main"](x);
**
**   ekiden::register_function("myns.add", [](int64_t a, int64_t b) { return a + b; });
**
**   struct Point : ekiden::Object { int64_t x = 0; };
**   ekiden::define<Point>("myns.Point").field("x", &Point::x);
*/
#ifndef EKIDEN_RUNTIME_HPP_
#define EKIDEN_RUNTIME_HPP_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ekiden/runtime.h"

namespace ekiden {

/* 1. Errors ------------------------------------------------------------------------------------ */

/* An error of the runtime: its kind ("ValueError", "LoadError", ...) and message. */
class Error : public std::runtime_error {
 public:
  Error(std::string kind, const std::string& message)
      : std::runtime_error(message), kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }

 private:
  std::string kind_;
};

namespace detail {

inline std::string text(ek_bytes bytes) { return std::string(bytes.data, bytes.size); }

/* Throws this thread's error. */
[[noreturn]] inline void raise() {
  ek_object* object = ek_error_take();
  if (object == nullptr) throw Error("InternalError", "a call failed without an error");
  auto* error = reinterpret_cast<ek_error_object*>(object);
  Error raised(text(error->kind), text(error->message));
  ek_release(object);
  throw raised;
}

inline void check(int code) {
  if (code < 0) raise();
}

/* Runs 'body'; what it throws becomes this thread's error. 0 or -1. */
template <typename Body>
int guard(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const Error& error) {
    return ek_error(error.kind().c_str(), "%s", error.what());
  } catch (const std::bad_alloc&) {
    return ek_error("MemoryError", "out of memory");
  } catch (const std::out_of_range& error) {
    return ek_error("IndexError", "%s", error.what());
  } catch (const std::invalid_argument& error) {
    return ek_error("ValueError", "%s", error.what());
  } catch (const std::exception& error) {
    return ek_error("RuntimeError", "%s", error.what());
  } catch (...) {
    return ek_error("RuntimeError", "an exception of unknown type");
  }
}

}  // namespace detail

/* 2. References -------------------------------------------------------------------------------- */

/* One strong reference to an object, or none. */
class ObjectRef {
 public:
  ObjectRef() = default;
  ObjectRef(const ObjectRef& other) : object_(other.object_) { ek_object_retain(object_); }
  ObjectRef(ObjectRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  ObjectRef& operator=(ObjectRef other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~ObjectRef() { ek_object_release(object_); }

  /* Takes a reference over, or adds one. */
  static ObjectRef take(ek_object* object) {
    ObjectRef ref;
    ref.object_ = object;
    return ref;
  }
  static ObjectRef borrow(ek_object* object) {
    ek_object_retain(object);
    return take(object);
  }

  ek_object* get() const { return object_; }
  ek_object* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }
  bool same_as(const ObjectRef& other) const { return object_ == other.object_; }
  std::string type_key() const {
    return object_ == nullptr ? "" : ek_type_key(object_->type_index);
  }

  static constexpr int32_t type_index() { return EK_OBJECT; }

 private:
  ek_object* object_ = nullptr;
};

/* The head of every C++ type that is an object: derive from it, define<T>() it, make<T>() it. */
struct Object : ek_object {
  Object() : ek_object{EK_REFS_NEW, 0, 0, nullptr} {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
};

namespace detail {

template <typename T>
struct TypeOf {
  static inline int32_t index = -1;
};

/* The object is destroyed with its last strong reference, its memory goes with the last weak
** one. */
template <typename T>
void delete_object(void* self, int flags) {
  T* object = static_cast<T*>(static_cast<ek_object*>(self));
  if (flags & EK_DELETE_CONTENT) object->~T();
  if (flags & EK_DELETE_MEMORY) ::operator delete(static_cast<void*>(object));
}

}  // namespace detail

/* The index of a C++ type that was defined. */
template <typename T>
int32_t type_index_of() {
  if (detail::TypeOf<T>::index < 0) throw Error("TypeError", "a C++ type has not been defined");
  return detail::TypeOf<T>::index;
}

/* A reference to an object of a C++ type or one derived from it. */
template <typename T>
class Ref : public ObjectRef {
 public:
  Ref() = default;
  explicit Ref(ObjectRef object) : ObjectRef(std::move(object)) {}
  template <typename U, typename = std::enable_if_t<std::is_base_of_v<T, U>>>
  Ref(const Ref<U>& other) : ObjectRef(other) {}
  T* operator->() const { return static_cast<T*>(get()); }
  T& operator*() const { return *static_cast<T*>(get()); }
  static int32_t type_index() { return type_index_of<T>(); }
};

/* Makes an object of a defined C++ type by its constructor. */
template <typename T, typename... Args>
Ref<T> make(Args&&... args) {
  int32_t index = type_index_of<T>();
  T* object = new T(std::forward<Args>(args)...);
  object->type_index = index;
  object->deleter = detail::delete_object<T>;
  return Ref<T>(ObjectRef::take(object));
}

/* A weak reference: does not keep the object, only tells whether it is there. */
template <typename R = ObjectRef>
class Weak {
 public:
  explicit Weak(const R& ref) : object_(ref.get()) {
    if (object_ != nullptr) ek_weak_retain(object_);
  }
  Weak(const Weak& other) : object_(other.object_) {
    if (object_ != nullptr) ek_weak_retain(object_);
  }
  Weak& operator=(Weak other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Weak() {
    if (object_ != nullptr) ek_weak_release(object_);
  }
  /* The object, or an empty reference when it is gone. */
  R lock() const {
    ek_object* object = object_ == nullptr ? nullptr : ek_weak_lock(object_);
    return object == nullptr ? R() : R(ObjectRef::take(object));
  }

 private:
  ek_object* object_;
};

/* 3. Values ------------------------------------------------------------------------------------ */

/* How a C++ type is a value: 'type' is its index for messages, 'is' whether a value is one, 'from'
** reads one, 'into' writes one that is owned. Specialise it for types of your own. */
template <typename T, typename = void>
struct ValueOf;

/* A value that owns its object. */
class Value {
 public:
  Value() : value_(ek_value_none()) {}
  Value(const Value& other) : value_(other.value_) { ek_value_retain(&value_); }
  Value(Value&& other) noexcept : value_(std::exchange(other.value_, ek_value_none())) {}
  template <typename T, typename = std::enable_if_t<!std::is_same_v<std::decay_t<T>, Value>>>
  Value(T&& from) : value_(ek_value_none()) {
    ValueOf<std::decay_t<T>>::into(std::forward<T>(from), &value_);
  }
  Value& operator=(Value other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Value() { ek_value_release(&value_); }

  static Value take(ek_value value) {
    Value taken;
    taken.value_ = value;
    return taken;
  }
  /* Text that is lent is copied. */
  static Value borrow(const ek_value& value) {
    ek_bytes bytes{"", 0};
    ek_value owned = value;
    bool is_lent = value.type_index == EK_RAW_STR || value.type_index == EK_BYTE_ARRAY_PTR;
    if (is_lent) {
      ek_string_borrow(&value, &bytes);
      int32_t type = value.type_index == EK_RAW_STR ? EK_STR : EK_BYTES;
      detail::check(ek_string_new(type, bytes.data, bytes.size, &owned));
    } else {
      ek_value_retain(&owned);
    }
    return take(owned);
  }

  const ek_value& raw() const { return value_; }
  ek_value release() { return std::exchange(value_, ek_value_none()); }
  bool is_none() const { return value_.type_index == EK_NONE; }

  template <typename T>
  bool is() const {
    return ValueOf<T>::is(value_);
  }
  /* The value as a C++ type; a TypeError for others. */
  template <typename T>
  T as() const;
  template <typename T>
  operator T() const {
    return as<T>();
  }

  friend bool operator==(const Value& a, const Value& b) {
    int equal = ek_value_equal(&a.value_, &b.value_);
    detail::check(equal);
    return equal == 1;
  }
  friend bool operator!=(const Value& a, const Value& b) { return !(a == b); }
  uint64_t hash() const {
    uint64_t out = 0;
    detail::check(ek_value_hash(&value_, &out));
    return out;
  }

 private:
  ek_value value_;
};

namespace detail {

inline std::string type_name(int32_t type) {
  if (type == EK_NONE) return "None";
  if (type == EK_SMALL_STR || type == EK_RAW_STR || type == EK_STR) return "a string";
  const char* key = ek_type_key(type);
  return key == nullptr ? "an unknown type" : key;
}

[[noreturn]] inline void wrong_type(const std::string& where, int32_t expected, int32_t got) {
  throw Error("TypeError", where + ": " + type_name(expected) + " expected, got " + type_name(got));
}

template <typename T>
T read(const std::string& where, const ek_value& value) {
  if (!ValueOf<T>::is(value)) wrong_type(where, ValueOf<T>::type(), value.type_index);
  return ValueOf<T>::from(value);
}

}  // namespace detail

template <typename T>
T Value::as() const {
  return detail::read<T>("read value", value_);
}

template <>
struct ValueOf<Value> {
  static int32_t type() { return EK_ANY; }
  static bool is(const ek_value&) { return true; }
  static Value from(const ek_value& value) { return Value::borrow(value); }
  static void into(const Value& from, ek_value* to) { *to = Value(from).release(); }
};

template <>
struct ValueOf<std::nullptr_t> {
  static int32_t type() { return EK_NONE; }
  static bool is(const ek_value& value) { return value.type_index == EK_NONE; }
  static std::nullptr_t from(const ek_value&) { return nullptr; }
  static void into(std::nullptr_t, ek_value* to) { *to = ek_value_none(); }
};

template <>
struct ValueOf<bool> {
  static int32_t type() { return EK_BOOL; }
  static bool is(const ek_value& value) {
    return value.type_index == EK_BOOL || value.type_index == EK_INT;
  }
  static bool from(const ek_value& value) { return value.v.i64 != 0; }
  static void into(bool from, ek_value* to) {
    *to = ek_value_int(from ? 1 : 0);
    to->type_index = EK_BOOL;
  }
};

template <typename T>
struct ValueOf<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static int32_t type() { return EK_INT; }
  static bool is(const ek_value& value) {
    return value.type_index == EK_INT || value.type_index == EK_BOOL;
  }
  static T from(const ek_value& value) {
    T number = static_cast<T>(value.v.i64);
    bool fits = static_cast<int64_t>(number) == value.v.i64 && (number < T(0)) == (value.v.i64 < 0);
    if (fits) return number;
    throw Error("ValueError", "the int " + std::to_string(value.v.i64) + " does not fit");
  }
  static void into(T from, ek_value* to) { *to = ek_value_int(static_cast<int64_t>(from)); }
};

template <typename T>
struct ValueOf<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static int32_t type() { return EK_FLOAT; }
  static bool is(const ek_value& value) {
    return value.type_index == EK_FLOAT || value.type_index == EK_INT;
  }
  static T from(const ek_value& value) {
    return value.type_index == EK_INT ? static_cast<T>(value.v.i64) : static_cast<T>(value.v.f64);
  }
  static void into(T from, ek_value* to) {
    *to = ek_value_none();
    to->type_index = EK_FLOAT;
    to->v.f64 = static_cast<double>(from);
  }
};

template <>
struct ValueOf<std::string> {
  static int32_t type() { return EK_STR; }
  static bool is(const ek_value& value) {
    ek_bytes bytes;
    return ek_string_borrow(&value, &bytes) != 0;
  }
  static std::string from(const ek_value& value) {
    ek_bytes bytes{"", 0};
    ek_string_borrow(&value, &bytes);
    return detail::text(bytes);
  }
  static void into(std::string_view from, ek_value* to) {
    detail::check(ek_string_new(EK_STR, from.data(), from.size(), to));
  }
};

template <>
struct ValueOf<const char*> {
  static void into(const char* from, ek_value* to) { ValueOf<std::string>::into(from, to); }
};

template <>
struct ValueOf<std::string_view> {
  static void into(std::string_view from, ek_value* to) { ValueOf<std::string>::into(from, to); }
};

template <>
struct ValueOf<ek_dtype> {
  static int32_t type() { return EK_DTYPE; }
  static bool is(const ek_value& value) { return value.type_index == EK_DTYPE; }
  static ek_dtype from(const ek_value& value) { return value.v.dtype; }
  static void into(ek_dtype from, ek_value* to) {
    *to = ek_value_none();
    to->type_index = EK_DTYPE;
    to->v.dtype = from;
  }
};

template <>
struct ValueOf<ek_device> {
  static int32_t type() { return EK_DEVICE; }
  static bool is(const ek_value& value) { return value.type_index == EK_DEVICE; }
  static ek_device from(const ek_value& value) { return value.v.device; }
  static void into(ek_device from, ek_value* to) {
    *to = ek_value_none();
    to->type_index = EK_DEVICE;
    to->v.device = from;
  }
};

/* A reference of any kind. An empty one is None. */
template <typename R>
struct ValueOf<R, std::enable_if_t<std::is_base_of_v<ObjectRef, R>>> {
  static int32_t type() { return R::type_index(); }
  static bool is(const ek_value& value) { return ek_type_is(value.type_index, R::type_index()); }
  static R from(const ek_value& value) { return R(ObjectRef::borrow(value.v.obj)); }
  static void into(R from, ek_value* to) {
    ek_object* object = from.release();
    *to = object == nullptr ? ek_value_none() : ek_value_object(object);
  }
};

/* None, or a T. */
template <typename T>
struct ValueOf<std::optional<T>> {
  static int32_t type() { return ValueOf<T>::type(); }
  static bool is(const ek_value& value) {
    return value.type_index == EK_NONE || ValueOf<T>::is(value);
  }
  static std::optional<T> from(const ek_value& value) {
    if (value.type_index == EK_NONE) return std::nullopt;
    return ValueOf<T>::from(value);
  }
  static void into(std::optional<T> from, ek_value* to) {
    *to = ek_value_none();
    if (from) ValueOf<T>::into(std::move(*from), to);
  }
};

namespace detail {

inline int64_t count_of(const ek_value& value) {
  return reinterpret_cast<const ek_array*>(value.v.obj)->size;
}

inline const ek_value& item_of(const ek_value& value, int64_t index) {
  return reinterpret_cast<const ek_array*>(value.v.obj)->data[index];
}

inline ek_object* container(int32_t type, const std::vector<Value>& items, int32_t tag = 0) {
  ek_object* out = nullptr;
  /* A Value is an ek_value and nothing else. */
  static_assert(sizeof(Value) == sizeof(ek_value), "a Value can be given where an ek_value can");
  auto* raw = reinterpret_cast<const ek_value*>(items.data());
  check(ek_container_new(type, tag, raw, static_cast<int64_t>(items.size()), &out));
  return out;
}

}  // namespace detail

/* An array of values of one type. */
template <typename T>
struct ValueOf<std::vector<T>> {
  static int32_t type() { return EK_ARRAY; }
  static bool is(const ek_value& value) {
    if (value.type_index != EK_ARRAY) return false;
    for (int64_t i = 0; i < detail::count_of(value); i++) {
      if (!ValueOf<T>::is(detail::item_of(value, i))) return false;
    }
    return true;
  }
  static std::vector<T> from(const ek_value& value) {
    std::vector<T> items;
    for (int64_t i = 0; i < detail::count_of(value); i++) {
      items.push_back(ValueOf<T>::from(detail::item_of(value, i)));
    }
    return items;
  }
  static void into(const std::vector<T>& from, ek_value* to) {
    std::vector<Value> items(from.begin(), from.end());
    *to = ek_value_object(detail::container(EK_ARRAY, items));
  }
};

/* 4. Containers -------------------------------------------------------------------------------- */

class Array : public ObjectRef {
 public:
  Array() : Array(std::vector<Value>{}) {}
  explicit Array(ObjectRef object) : ObjectRef(std::move(object)) {}
  explicit Array(const std::vector<Value>& items)
      : ObjectRef(ObjectRef::take(detail::container(EK_ARRAY, items))) {}
  Array(std::initializer_list<Value> items) : Array(std::vector<Value>(items)) {}
  static constexpr int32_t type_index() { return EK_ARRAY; }

  size_t size() const { return static_cast<size_t>(raw()->size); }
  Value operator[](size_t index) const {
    if (index >= size()) throw Error("IndexError", "array: index " + std::to_string(index));
    return Value::borrow(raw()->data[index]);
  }

 private:
  const ek_array* raw() const { return reinterpret_cast<const ek_array*>(get()); }
};

class Map : public ObjectRef {
 public:
  explicit Map(ObjectRef object) : ObjectRef(std::move(object)) {}
  Map(std::initializer_list<std::pair<Value, Value>> pairs = {}) {
    std::vector<Value> items;
    for (const auto& [key, value] : pairs) {
      items.push_back(key);
      items.push_back(value);
    }
    static_cast<ObjectRef&>(*this) = ObjectRef::take(detail::container(EK_MAP, items));
  }
  static constexpr int32_t type_index() { return EK_MAP; }

  size_t size() const { return reinterpret_cast<const ek_map*>(get())->size; }
  std::optional<Value> find(const Value& key) const {
    ek_value out = ek_value_none();
    int found = ek_map_get(get(), &key.raw(), &out);
    detail::check(found);
    return found ? std::optional<Value>(Value::borrow(out)) : std::nullopt;
  }
  Value operator[](const Value& key) const {
    std::optional<Value> found = find(key);
    if (!found) throw Error("KeyError", "map: there is no such key");
    return *found;
  }
};

/* Data of a program: a constructor's number and its fields; a tuple has 0. Results of programs that
** have several are one. */
class ADT : public ObjectRef {
 public:
  explicit ADT(ObjectRef object) : ObjectRef(std::move(object)) {}
  ADT(int32_t tag, const std::vector<Value>& fields)
      : ObjectRef(ObjectRef::take(detail::container(EK_ADT, fields, tag))) {}
  static constexpr int32_t type_index() { return EK_ADT; }

  int32_t tag() const { return raw()->tag; }
  size_t size() const { return static_cast<size_t>(raw()->size); }
  Value operator[](size_t index) const {
    if (index >= size()) throw Error("IndexError", "ADT: field " + std::to_string(index));
    return Value::borrow(raw()->fields[index]);
  }
  std::vector<Value> fields() const {
    std::vector<Value> made;
    for (size_t i = 0; i < size(); i++) made.push_back((*this)[i]);
    return made;
  }

 private:
  const ek_adt* raw() const { return reinterpret_cast<const ek_adt*>(get()); }
};

class Shape : public ObjectRef {
 public:
  explicit Shape(ObjectRef object) : ObjectRef(std::move(object)) {}
  Shape(std::initializer_list<int64_t> dims) {
    std::vector<Value> items(dims.begin(), dims.end());
    static_cast<ObjectRef&>(*this) = ObjectRef::take(detail::container(EK_SHAPE, items));
  }
  static constexpr int32_t type_index() { return EK_SHAPE; }

  const int64_t* begin() const { return reinterpret_cast<const ek_shape*>(get())->data; }
  const int64_t* end() const { return begin() + size(); }
  size_t size() const { return reinterpret_cast<const ek_shape*>(get())->size; }
};

/* 5. Tensors ----------------------------------------------------------------------------------- */

/* The dtype of a C++ type. */
template <typename T>
constexpr ek_dtype dtype_of() {
  static_assert(std::is_arithmetic_v<T>, "a number expected; give other dtypes as ek_dtype");
  uint8_t code = std::is_same_v<T, bool>          ? EK_DTYPE_BOOL
                 : std::is_floating_point_v<T>    ? EK_DTYPE_FLOAT
                 : std::is_signed_v<T>            ? EK_DTYPE_INT
                                                  : EK_DTYPE_UINT;
  return ek_dtype{code, static_cast<uint8_t>(8 * sizeof(T)), 1};
}

inline constexpr ek_device cpu{EK_CPU, 0};

class Tensor : public ObjectRef {
 public:
  Tensor() = default;
  explicit Tensor(ObjectRef object) : ObjectRef(std::move(object)) {}
  static constexpr int32_t type_index() { return EK_TENSOR; }

  /* A new tensor whose elements are undefined. */
  static Tensor empty(const std::vector<int64_t>& shape, ek_dtype dtype, ek_device device = cpu) {
    ek_object* out = nullptr;
    auto ndim = static_cast<int32_t>(shape.size());
    detail::check(ek_tensor_new(shape.data(), ndim, dtype, device, &out));
    return Tensor(ObjectRef::take(out));
  }

  /* A new tensor on the CPU with a copy of the elements, in row-major order. */
  template <typename T>
  static Tensor from(const std::vector<int64_t>& shape, const std::vector<T>& elements) {
    Tensor tensor = empty(shape, dtype_of<T>());
    if (tensor.size() != elements.size()) {
      throw Error("ValueError", "make tensor: " + std::to_string(tensor.size()) +
                                    " elements expected, got " + std::to_string(elements.size()));
    }
    if (!elements.empty()) std::memcpy(tensor.data<T>(), elements.data(), tensor.nbytes());
    return tensor;
  }

  const ek_dltensor& dl() const {
    if (get() == nullptr) throw Error("ValueError", "read tensor: it is empty");
    return reinterpret_cast<const ek_tensor*>(get())->dl;
  }
  std::vector<int64_t> shape() const { return {dl().shape, dl().shape + dl().ndim}; }
  ek_dtype dtype() const { return dl().dtype; }
  ek_device device() const { return dl().device; }
  size_t nbytes() const { return ek_dltensor_nbytes(&dl()); }
  bool is_contiguous() const { return ek_dltensor_is_contiguous(&dl()) != 0; }
  size_t size() const {
    size_t count = 1;
    for (int32_t i = 0; i < dl().ndim; i++) count *= static_cast<size_t>(dl().shape[i]);
    return count;
  }

  /* Whether the elements may not be written: constants of a program may not, for one. */
  bool is_read_only() const { return ek_tensor_is_read_only(get()) != 0; }

  /* The elements of a contiguous tensor of the CPU; a TypeError for another dtype. They can be
  ** written through a Tensor that is neither const nor a temporary: one that is read-only becomes a
  ** copy first, and other handles keep the memory it had. */
  template <typename T>
  T* data() & {
    T* at = elements<T>();
    if (!is_read_only()) return at;
    *this = to(device());
    return elements<T>();
  }
  template <typename T>
  const T* data() const& {
    return elements<T>();
  }
  template <typename T>
  const T* data() && {
    return elements<T>();
  }

  template <typename T>
  std::vector<T> to_vector() const {
    const T* from = data<T>();
    return std::vector<T>(from, from + size());
  }

  void copy_to(const Tensor& other) const {
    if (other.is_read_only()) throw Error("ValueError", "copy tensor: the other is read-only");
    detail::check(ek_tensor_copy(&dl(), &other.dl()));
  }

  Tensor to(ek_device device) const {
    Tensor other = empty(shape(), dtype(), device);
    copy_to(other);
    return other;
  }

 private:
  template <typename T>
  T* elements() const {
    ek_dtype expected = dtype_of<T>();
    if (std::memcmp(&expected, &dl().dtype, sizeof expected) != 0) {
      throw Error("TypeError", "read tensor: the elements have another dtype");
    }
    if (dl().device.type != EK_CPU || !is_contiguous()) {
      throw Error("ValueError", "read tensor: a contiguous tensor of the CPU expected");
    }
    return static_cast<T*>(ek_dltensor_data(&dl()));
  }
};

/* One that the caller lends is wrapped: it lives as long as the call. */
template <>
struct ValueOf<Tensor> {
  static int32_t type() { return EK_TENSOR; }
  static bool is(const ek_value& value) { return ek_value_tensor(&value) != nullptr; }
  static Tensor from(const ek_value& value) {
    if (value.type_index == EK_TENSOR) return Tensor(ObjectRef::borrow(value.v.obj));
    ek_object* out = nullptr;
    detail::check(ek_tensor_strided(nullptr, ek_value_tensor(&value), 0, &out));
    return Tensor(ObjectRef::take(out));
  }
  static void into(Tensor from, ek_value* to) {
    ek_object* object = from.release();
    *to = object == nullptr ? ek_value_none() : ek_value_object(object);
  }
};

/* 6. Functions --------------------------------------------------------------------------------- */

/* The arguments of a function that takes any number of any type. */
class Args {
 public:
  Args(const ek_value* values, int32_t count) : values_(values), count_(count) {}
  size_t size() const { return static_cast<size_t>(count_); }
  Value operator[](size_t index) const {
    if (index >= size()) {
      throw Error("TypeError", "argument " + std::to_string(index) + " is missing");
    }
    return ValueOf<Value>::from(values_[index]);
  }

 private:
  const ek_value* values_;
  int32_t count_;
};

namespace detail {

/* An argument as a call takes it: text is lent, and so are objects. */
struct Lent {
  ek_value value;
  Value keeper;

  template <typename T>
  explicit Lent(const T& from) : value(ek_value_none()) {
    if constexpr (std::is_base_of_v<ObjectRef, T>) {
      if (from) value = ek_value_object(from.get());
    } else if constexpr (std::is_same_v<T, Value>) {
      value = from.raw();
    } else if constexpr (std::is_null_pointer_v<T>) {
      /* None */
    } else if constexpr (std::is_convertible_v<T, const char*>) {
      value.type_index = EK_RAW_STR;
      value.v.ptr = const_cast<char*>(static_cast<const char*>(from));
    } else if constexpr (std::is_convertible_v<T, const ek_dltensor*>) {
      value.type_index = EK_DLTENSOR_PTR;
      value.v.ptr = const_cast<ek_dltensor*>(static_cast<const ek_dltensor*>(from));
    } else {
      keeper = Value(from);
      value = keeper.raw();
    }
  }
};

/* The result and the arguments of something that can be called. */
template <typename F>
struct Signature : Signature<decltype(&F::operator())> {};
template <typename R, typename... A>
struct Signature<R (*)(A...)> {
  using Result = R;
  using Arguments = std::tuple<std::decay_t<A>...>;
  using Indices = std::index_sequence_for<A...>;
};
template <typename C, typename R, typename... A>
struct Signature<R (C::*)(A...) const> : Signature<R (*)(A...)> {};
template <typename C, typename R, typename... A>
struct Signature<R (C::*)(A...)> : Signature<R (*)(A...)> {};

template <typename F>
struct Callee {
  std::string name;
  F function;
};

template <typename T>
T argument(const std::string& name, size_t index, const ek_value& value) {
  if (ValueOf<T>::is(value)) return ValueOf<T>::from(value);
  wrong_type(name + ": argument " + std::to_string(index), ValueOf<T>::type(), value.type_index);
}

template <typename F, size_t... I>
void invoke(Callee<F>& callee, const ek_value* args, int32_t nargs, ek_value* ret,
            std::index_sequence<I...>) {
  using S = Signature<F>;
  using A = typename S::Arguments;
  if constexpr (std::is_same_v<A, std::tuple<Args>>) {
    *ret = Value(callee.function(Args(args, nargs))).release();
    return;
  } else {
    if (nargs != static_cast<int32_t>(sizeof...(I))) {
      throw Error("TypeError", callee.name + ": " + std::to_string(sizeof...(I)) +
                                   " arguments expected, got " + std::to_string(nargs));
    }
    if constexpr (std::is_void_v<typename S::Result>) {
      callee.function(argument<std::tuple_element_t<I, A>>(callee.name, I, args[I])...);
    } else {
      Value result(
          callee.function(argument<std::tuple_element_t<I, A>>(callee.name, I, args[I])...));
      *ret = result.release();
    }
  }
}

template <typename F>
int call(void* self, const ek_value* args, int32_t nargs, ek_value* ret) {
  auto* callee = static_cast<Callee<F>*>(self);
  return guard([&] {
    invoke(*callee, args, nargs, ret, typename Signature<F>::Indices());
  });
}

template <typename F>
void delete_callee(void* self) {
  delete static_cast<Callee<F>*>(self);
}

}  // namespace detail

/* A function of any language. */
class Function : public ObjectRef {
 public:
  Function() = default;
  explicit Function(ObjectRef object) : ObjectRef(std::move(object)) {}
  static constexpr int32_t type_index() { return EK_FUNCTION; }

  /* Makes one of a C++ callable, whose parameter types say how arguments are read. A Tensor may be
  ** one that the caller lends for the call: keep a copy of the elements, not the Tensor. 'name'
  ** stands in messages. */
  template <typename F>
  static Function of(F function, std::string name = "function") {
    using Callee = detail::Callee<F>;
    auto callee = std::make_unique<Callee>(Callee{std::move(name), std::move(function)});
    ek_object* out = nullptr;
    detail::check(ek_function_new(callee.get(), detail::call<F>, detail::delete_callee<F>, &out));
    callee.release();
    return Function(ObjectRef::take(out));
  }

  /* The global function of a name; a KeyError when there is none. */
  static Function global(const std::string& name) {
    ek_object* found = ek_registry_get(name.c_str());
    if (found == nullptr) throw Error("KeyError", "there is no global function '" + name + "'");
    return Function(ObjectRef::take(found));
  }

  template <typename... A>
  Value operator()(const A&... args) const {
    detail::Lent lent[sizeof...(A) + 1] = {detail::Lent(args)..., detail::Lent(nullptr)};
    ek_value values[sizeof...(A) + 1], result = ek_value_none();
    for (size_t i = 0; i < sizeof...(A); i++) values[i] = lent[i].value;
    detail::check(ek_function_call(alive(), values, static_cast<int32_t>(sizeof...(A)), &result));
    return Value::take(result);
  }

  Value call(const std::vector<Value>& args) const {
    ek_value result = ek_value_none();
    auto* values = reinterpret_cast<const ek_value*>(args.data());
    detail::check(ek_function_call(alive(), values, static_cast<int32_t>(args.size()), &result));
    return Value::take(result);
  }

 private:
  ek_object* alive() const {
    if (get() == nullptr) throw Error("ValueError", "call function: it is empty");
    return get();
  }
};

/* A function whose types are known: TypedFunction<int64_t(int64_t, double)>. */
template <typename Signature>
class TypedFunction;
template <typename R, typename... A>
class TypedFunction<R(A...)> : public Function {
 public:
  TypedFunction() = default;
  TypedFunction(Function function) : Function(std::move(function)) {}
  explicit TypedFunction(ObjectRef object) : Function(std::move(object)) {}
  R operator()(const std::decay_t<A>&... args) const {
    Value result = Function::operator()(args...);
    if constexpr (!std::is_void_v<R>) return detail::read<R>("result of function", result.raw());
  }
};

/* Registers a callable as a global function; a ValueError when the name is taken. */
template <typename F>
void register_function(const std::string& name, F function, bool override = false) {
  Function made = Function::of(std::move(function), name);
  detail::check(ek_registry_set(name.c_str(), made.get(), override ? 1 : 0));
}

/* 7. Modules ----------------------------------------------------------------------------------- */

namespace detail {

inline std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace detail

class Module : public ObjectRef {
 public:
  Module() = default;
  explicit Module(ObjectRef object) : ObjectRef(std::move(object)) {}
  static constexpr int32_t type_index() { return EK_MODULE; }

  /* A shared library, an executable, or what a registered loader reads. */
  static Module load(const std::string& path) {
    ek_object* out = nullptr;
    detail::check(ek_module_load(path.c_str(), &out));
    return Module(ObjectRef::take(out));
  }

  std::optional<Function> find(const std::string& name) const {
    ek_object* out = nullptr;
    detail::check(ek_module_get(get(), name.c_str(), &out));
    return out == nullptr ? std::nullopt : std::optional<Function>(ObjectRef::take(out));
  }
  Function operator[](const std::string& name) const {
    std::optional<Function> found = find(name);
    if (found) return *found;
    throw Error("AttributeError", "module: no function named '" + name + "'; there are " +
                                      detail::listed(names()));
  }
  bool implements(const std::string& name) const { return find(name).has_value(); }
  void import(const Module& other) const { detail::check(ek_module_import(get(), other.get())); }
  std::string kind() const { return part(EK_MODULE_KIND).as<std::string>(); }
  std::vector<std::string> names() const {
    return part(EK_MODULE_NAMES).as<std::vector<std::string>>();
  }
  std::vector<Module> imports() const { return part(EK_MODULE_IMPORTS).as<std::vector<Module>>(); }

 private:
  Value part(int32_t which) const {
    ek_value out = ek_value_none();
    detail::check(ek_module_part(get(), which, &out));
    return Value::take(out);
  }
};

/* A compiled model of an .eki file: functions whose inputs have names. Any thread may run it. */
class Model {
 public:
  using Inputs = std::vector<std::pair<std::string, Tensor>>;

  /* How often a kernel ran, and for how long. */
  struct KernelTime {
    std::string name;
    int64_t calls, nanoseconds;
  };

  /* An OSError, a LoadError, an AttributeError where the module is no model. */
  static Model load(const std::string& path) { return Model(Module::load(path)); }
  explicit Model(Module module)
      : module_(std::move(module)), executable_(module_["get_executable"]().as<ObjectRef>()) {}

  const Module& module() const { return module_; }

  /* The names of a function's inputs, in their order. */
  std::vector<std::string> inputs(const std::string& function = "main") const {
    ek_value out = ek_value_none();
    detail::check(ek_executable_item(executable_.get(), EK_PART_PARAMS, index(function), &out));
    return Value::take(out).as<std::vector<std::string>>();
  }

  /* A tensor, or an object of several. An InputError names the input that is missing, too many, or
  ** of another type or shape. */
  Value run(const Inputs& inputs, const std::string& function = "main") const {
    return module_[function].call(arranged(inputs, function));
  }

  /* Runs a function, with its result in '*result', and tells how long each of its kernels took. */
  std::vector<KernelTime> profile(const Inputs& inputs, Value* result = nullptr,
                                  const std::string& function = "main") const {
    ek_object* machine = nullptr;
    detail::check(ek_vm_new(executable_.get(), &machine));
    ObjectRef kept = ObjectRef::take(machine);
    Module debugger = Function::global("ek.vm.module")(kept);
    std::vector<Value> args = arranged(inputs, function);
    args.insert(args.begin(), Value(index(function)));
    Array items = debugger["kernels"].call(args);
    std::vector<KernelTime> times;
    if (result != nullptr) *result = items[0];
    for (size_t i = 1; i + 2 < items.size(); i += 3) {
      times.push_back(KernelTime{items[i].as<std::string>(), items[i + 1].as<int64_t>(),
                                 items[i + 2].as<int64_t>()});
    }
    return times;
  }

  /* How many threads a run has at most; 0 for as many as the process. */
  void num_threads(int64_t n) const {
    if (n < 0) throw Error("ValueError", "threads: 0 or more expected, got " + std::to_string(n));
    Function::global("ek.executable.num_threads")(executable_, n);
  }
  int64_t num_threads() const { return Function::global("ek.executable.num_threads")(executable_); }

 private:
  int64_t index(const std::string& function) const {
    std::vector<std::string> names = module_.names();
    for (size_t i = 0; i < names.size(); i++) {
      if (names[i] == function) return static_cast<int64_t>(i);
    }
    throw Error("AttributeError", "model: no function named '" + function + "'; there are " +
                                      detail::listed(names));
  }

  std::vector<Value> arranged(const Inputs& given, const std::string& function) const {
    std::vector<std::string> wanted = inputs(function);
    std::vector<Value> args(wanted.size());
    std::vector<bool> is_there(wanted.size());
    for (const auto& [name, tensor] : given) {
      size_t at = 0;
      while (at < wanted.size() && wanted[at] != name) at++;
      if (at == wanted.size()) {
        throw Error("InputError",
                    "no input '" + name + "'; there are " + detail::listed(wanted));
      }
      args[at] = tensor;
      is_there[at] = true;
    }
    for (size_t i = 0; i < wanted.size(); i++) {
      if (!is_there[i]) throw Error("InputError", "input '" + wanted[i] + "' is missing");
    }
    return args;
  }

  Module module_;
  ObjectRef executable_;
};

/* 8. Types ------------------------------------------------------------------------------------- */

namespace detail {

/* How a member lies in its object: see ek_field. Those that are no plain memory of the runtime's
** are read and written as values. */
template <typename M>
struct Member {
  static constexpr bool is_plain =
      std::is_arithmetic_v<M> || std::is_same_v<M, ek_dtype> || std::is_same_v<M, ek_device>;
  static constexpr bool is_reference =
      std::is_base_of_v<ObjectRef, M> && sizeof(M) == sizeof(ek_object*);

  static ek_field field(const char* name, int64_t offset) {
    ek_field made{};
    made.name = name;
    made.offset = offset;
    made.size = static_cast<int32_t>(sizeof(M));
    made.flags = EK_FIELD_DEFAULT;
    made.standard.type_index = EK_ANY;
    if constexpr (std::is_same_v<M, Value>) {
      made.type = EK_ANY;
    } else {
      made.type = ValueOf<M>::type();
    }
    if constexpr (std::is_integral_v<M> && std::is_unsigned_v<M> && !std::is_same_v<M, bool>) {
      made.flags |= EK_FIELD_UNSIGNED;
    }
    if constexpr (!is_plain && !is_reference && !std::is_same_v<M, Value>) {
      made.get = get;
      made.set = set;
    }
    return made;
  }

  static M& at(const ek_object* self, const ek_field* field) {
    return *reinterpret_cast<M*>(reinterpret_cast<uintptr_t>(self) +
                                 static_cast<uintptr_t>(field->offset));
  }
  static int get(const ek_object* self, const ek_field* field, ek_value* out) {
    return guard([&] { *out = Value(at(self, field)).release(); });
  }
  static int set(ek_object* self, const ek_field* field, const ek_value* value) {
    return guard([&] {
      at(self, field) = read<M>("set field '" + std::string(field->name) + "'", *value);
    });
  }
};

template <typename T>
int create(ek_object** out) {
  return guard([&] { *out = make<T>().release(); });
}

}  // namespace detail

/* Collects what a type is made of, and defines it when the statement ends. */
template <typename T>
class Definition {
 public:
  static_assert(!std::is_polymorphic_v<T>, "an object begins with its header: nothing is virtual");
  static_assert(std::is_base_of_v<Object, T>, "derive the type from ekiden::Object");

  Definition(const std::string& key, int32_t parent) : key_(key) {
    detail::check(detail::TypeOf<T>::index = ek_type_register(key.c_str(), parent));
    def_.size = static_cast<int64_t>(sizeof(T));
    if constexpr (std::is_default_constructible_v<T>) def_.create = detail::create<T>;
  }
  Definition(const Definition&) = delete;
  Definition& operator=(const Definition&) = delete;

  ~Definition() noexcept(false) {
    if (std::uncaught_exceptions() != exceptions_) return;
    def_.doc = doc_.c_str();
    def_.fields = fields_.data();
    def_.n_fields = static_cast<int32_t>(fields_.size());
    def_.methods = methods_.data();
    def_.n_methods = static_cast<int32_t>(methods_.size());
    detail::check(ek_type_define(detail::TypeOf<T>::index, &def_));
  }

  Definition& doc(std::string text) {
    doc_ = std::move(text);
    return *this;
  }

  /* A member as a field; flags are of ek_field_flag. Left out when an object is made, it is what
  ** the constructor without arguments makes it. */
  template <typename M, typename Owner>
  Definition& field(const char* name, M Owner::*member, uint64_t flags = 0,
                    const char* doc = nullptr) {
    alignas(T) static unsigned char place[sizeof(T)];
    auto* object = reinterpret_cast<T*>(place);
    auto offset = reinterpret_cast<unsigned char*>(&(object->*member)) - place;
    fields_.push_back(detail::Member<M>::field(name, static_cast<int64_t>(offset)));
    fields_.back().flags |= flags;
    fields_.back().doc = doc;
    return *this;
  }

  /* A member function, or a callable whose first parameter is a Ref<T>, as a method. */
  template <typename F>
  Definition& method(const char* name, F function, const char* doc = nullptr) {
    if constexpr (std::is_member_function_pointer_v<F>) {
      return add_member(name, function, doc);
    } else {
      kept_.push_back(Function::of(std::move(function), key_ + "." + name));
      methods_.push_back(ek_method{name, doc, kept_.back().get()});
      return *this;
    }
  }

 private:
  template <typename R, typename C, typename... A>
  Definition& add_member(const char* name, R (C::*member)(A...) const, const char* doc) {
    return method(name, [member](Ref<T> self, std::decay_t<A>... a) -> R {
      return ((*self).*member)(a...);
    }, doc);
  }
  template <typename R, typename C, typename... A>
  Definition& add_member(const char* name, R (C::*member)(A...), const char* doc) {
    return method(name, [member](Ref<T> self, std::decay_t<A>... a) -> R {
      return ((*self).*member)(a...);
    }, doc);
  }

  std::string key_, doc_;
  ek_type_def def_{};
  std::vector<ek_field> fields_;
  std::vector<ek_method> methods_;
  std::vector<Function> kept_;
  int exceptions_ = std::uncaught_exceptions();
};

/* define<Point>("myns.Point").field("x", &Point::x).method("norm", &Point::norm); */
template <typename T>
Definition<T> define(const std::string& key) {
  return Definition<T>(key, EK_OBJECT);
}

/* The same for a type derived from another defined one. */
template <typename T, typename Parent>
Definition<T> define(const std::string& key) {
  static_assert(std::is_base_of_v<Parent, T>, "the C++ type is derived from its parent, too");
  return Definition<T>(key, type_index_of<Parent>());
}

/* Uses a type that another library has defined; the C++ types must be the same. */
template <typename T>
void use(const std::string& key) {
  int32_t index = ek_type_index(key.c_str());
  if (index < 0) throw Error("KeyError", "there is no type '" + key + "'");
  detail::TypeOf<T>::index = index;
}

namespace detail {

[[noreturn]] inline void no_field(const ObjectRef& object, std::string_view name) {
  throw Error("AttributeError",
              "'" + object.type_key() + "' has no field '" + std::string(name) + "'");
}

inline Value adt_field(const ADT& adt, std::string_view name) {
  if (name == "tag") return adt.tag();
  for (size_t i = 0; i < adt.size(); i++)
    if (name == std::to_string(i)) return adt[i];
  throw Error("AttributeError", "an ADT of " + std::to_string(adt.size()) +
                                    " fields has 'tag' and their numbers, not '" +
                                    std::string(name) + "'");
}

}  // namespace detail

/* Reads a field of any object by its name: of an ADT "tag", "0", "1" and so on. */
inline Value get_field(const ObjectRef& object, std::string_view name) {
  if (object && object.get()->type_index == EK_ADT) return detail::adt_field(ADT(object), name);
  const ek_type_info* info = object ? ek_type_get(object.get()->type_index) : nullptr;
  for (int32_t i = 0; info != nullptr && i < info->n_fields; i++) {
    if (name != info->fields[i].name) continue;
    ek_value out = ek_value_none();
    detail::check(ek_field_get(object.get(), &info->fields[i], &out));
    return Value::take(out);
  }
  detail::no_field(object, name);
}

/* Writes one. */
inline void set_field(const ObjectRef& object, std::string_view name, const Value& value) {
  const ek_type_info* info = object ? ek_type_get(object.get()->type_index) : nullptr;
  for (int32_t i = 0; info != nullptr && i < info->n_fields; i++) {
    if (name != info->fields[i].name) continue;
    detail::check(ek_field_set(object.get(), &info->fields[i], &value.raw()));
    return;
  }
  detail::no_field(object, name);
}

}  // namespace ekiden

/* What a library registers when it is loaded: EKIDEN_INIT { ekiden::register_function(...); } */
#define EKIDEN_INIT                                                                     \
  static void ekiden_init();                                                            \
  extern "C" __attribute__((visibility("default"))) int __ek_init(void) {               \
    return ekiden::detail::guard(ekiden_init);                                          \
  }                                                                                     \
  static void ekiden_init()

/* A function of the library's module: EKIDEN_EXPORT(name, callable). */
#define EKIDEN_EXPORT(name, ...)                                                        \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(               \
      void*, const ek_value* args, int32_t nargs, ek_value* ret) {                      \
    auto function = __VA_ARGS__;                                                        \
    ekiden::detail::Callee<decltype(function)> callee{#name, function};                 \
    return ekiden::detail::call<decltype(function)>(&callee, args, nargs, ret);         \
  }

#endif  // EKIDEN_RUNTIME_HPP_
