/* A library that brings a type and functions of its own, loaded at run time. */
#include <ekiden/runtime.hpp>

namespace {

struct MyExpr : ekiden::Object {
  int64_t value = 0;
};

struct Named : MyExpr {
  std::string name = "nobody";
  ekiden::ObjectRef next;
  std::vector<double> weights;
  int64_t doubled() const { return 2 * value; }
};

ekiden::Ref<MyExpr> add_one(ekiden::Ref<MyExpr> expr) {
  auto result = ekiden::make<MyExpr>();
  result->value = expr->value + 1;
  return result;
}

void bump(ekiden::Ref<MyExpr> expr, std::optional<int64_t> by) { expr->value += by.value_or(1); }

void refuse(int64_t code) { throw ekiden::Error("IndexError", "code " + std::to_string(code)); }

}  // namespace

EKIDEN_INIT {
  ekiden::define<MyExpr>("kinds.MyExpr").doc("an int").field("value", &MyExpr::value);
  ekiden::define<Named, MyExpr>("kinds.Named")
      .field("name", &Named::name)
      .field("next", &Named::next)
      .field("weights", &Named::weights, EK_FIELD_IGNORE)
      .method("doubled", &Named::doubled);
  ekiden::register_function("kinds.add_one", add_one);
  ekiden::register_function("kinds.bump", bump);
  ekiden::register_function("kinds.refuse", refuse);
}

EKIDEN_EXPORT(length, [](const std::string& text) { return text.size(); })
