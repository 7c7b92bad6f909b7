/* The pending error of a thread. */
#include "check.h"

static void an_error_is_set_and_taken(void) {
  CHECK(ek_error_take() == NULL);
  CHECK_ERROR(ek_error("ValueError", "pad: expected %d, got '%s'", 3, "four"), "ValueError",
              "pad: expected 3, got 'four'");
  CHECK(ek_error_take() == NULL);
}

static void a_later_error_replaces_an_earlier_one(void) {
  ek_error("ValueError", "first");
  CHECK_ERROR(ek_error("TypeError", "second"), "TypeError", "second");
}

static void a_long_message_is_kept_whole(void) {
  char text[5000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  CHECK_ERROR(ek_error("ValueError", "%s", text), "ValueError", text);
}

static void an_error_object_can_be_raised_again(void) {
  ek_error("KeyError", "gone");
  ek_object *error = ek_error_take();
  CHECK(ek_error_set(error) == -1);
  CHECK(ek_error_take() == error);
  ek_object_release(error);
  ek_object_release(error);
}

static void the_backtrace_grows(void) {
  ek_error("ValueError", "deep");
  ek_error_object *error = (ek_error_object *)(void *)ek_error_take();
  ek_bytes line = ek_bytes_of("b\n"), first = ek_bytes_of("a\n"), none = {NULL, 0};
  CHECK(error->backtrace.size == 0);
  error->update_backtrace(error, &first, 0);
  error->update_backtrace(error, &line, 1);
  CHECK(same_text(error->backtrace, "a\nb\n"));
  error->update_backtrace(error, &line, 0);
  CHECK(same_text(error->backtrace, "b\n"));
  error->update_backtrace(error, &none, 0);
  CHECK(same_text(error->backtrace, ""));
  error->update_backtrace(error, &line, 1);
  ek_object_release(&error->base);
}

static void look_for_an_error(void *context) {
  *(bool *)context = ek_error_take() == NULL;
  ek_error("ValueError", "of the other thread, which nobody takes");
  drop_error();
}

static void errors_belong_to_their_thread(void) {
  ek_thread thread;
  bool was_clear = false;
  ek_error("ValueError", "mine");
  CHECK(ek_thread_start(&thread, look_for_an_error, &was_clear, -1) == 0);
  ek_thread_join(thread);
  CHECK(was_clear);
  check_error(__FILE__, __LINE__, "ValueError", "mine");
}

int main(void) {
  an_error_is_set_and_taken();
  a_later_error_replaces_an_earlier_one();
  a_long_message_is_kept_whole();
  an_error_object_can_be_raised_again();
  the_backtrace_grows();
  errors_belong_to_their_thread();
  return 0;
}
