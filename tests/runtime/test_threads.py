"""Calls and callbacks from several threads at once."""

import gc
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ekiden import runtime

SOURCE = r"""
#include <ekiden/runtime.h>
#include <pthread.h>

/* Calls f(i) for i below n. */
EK_API int __tvm_ffi_repeat(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs;
  for (int64_t i = 0; i < args[1].v.i64; i++) {
    ek_value number = ek_value_int(i);
    if (ek_function_call(args[0].v.obj, &number, 1, ret) != 0) return -1;
    ek_value_release(ret);
  }
  return 0;
}

static void *work(void *function) {
  ek_value ret = ek_value_none(), number = ek_value_int(7);
  for (int i = 0; i < 100; i++) {
    if (ek_function_call(function, &number, 1, &ret) != 0) return function;
    ek_value_release(&ret);
  }
  return NULL;
}

/* Calls f from four threads that Python has never seen; gives how many of them failed. */
EK_API int __tvm_ffi_spread(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs;
  pthread_t threads[4];
  int64_t failed = 0;
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, args[0].v.obj);
  for (int i = 0; i < 4; i++) {
    void *result;
    pthread_join(threads[i], &result);
    failed += result != NULL;
  }
  *ret = ek_value_int(failed);
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> runtime.Module:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: install gcc or clang")
    folder: Path = tmp_path_factory.mktemp("threads")
    (folder / "threads.c").write_text(SOURCE)
    output = folder / "threads.so"
    command = [compiler, "-shared", "-fPIC", "-pthread", f"-I{runtime.include_dir()}"]
    command += [str(folder / "threads.c"), str(runtime.library_path()), "-o", str(output)]
    subprocess.run(command, check=True)
    return runtime.load_module(output)


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """Run work(i) in as many threads; the first failure is raised."""
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_call_and_are_called_back(library: runtime.Module) -> None:
    sums = [0] * 4
    repeat = library["repeat"]

    def work(thread: int) -> None:
        def add(i: int) -> None:
            sums[thread] += i

        for _ in range(20):
            repeat(add, 500)

    in_threads(work)
    assert sums == [20 * sum(range(500))] * 4


def test_each_thread_has_its_own_error(library: runtime.Module) -> None:
    repeat = library["repeat"]

    def work(thread: int) -> None:
        def fail(i: int) -> None:
            if i == 50 + thread:
                raise ValueError(f"thread {thread}")

        for _ in range(50):
            with pytest.raises(ValueError, match=f"^thread {thread}$"):
                repeat(fail, 100)

    in_threads(work)


def test_native_threads_may_call_python(library: runtime.Module) -> None:
    seen: set[int] = set()

    def note(number: int) -> None:
        seen.add(threading.get_ident())

    assert library["spread"](note) == 0
    assert len(seen) == 4
    assert threading.get_ident() not in seen

    def fail(number: int) -> None:
        raise ValueError(number)

    assert library["spread"](fail) == 4


def test_callbacks_may_call_again(library: runtime.Module) -> None:
    repeat = library["repeat"]
    depth_reached = []

    def down(depth: int) -> Callable[[int], None]:
        def step(i: int) -> None:
            if depth == 0:
                depth_reached.append(i)
            else:
                repeat(down(depth - 1), 2)

        return step

    repeat(down(5), 2)
    assert len(depth_reached) == 2**6


def test_python_runs_while_native_code_does(library: runtime.Module) -> None:
    """A thread that waits in native code for another thread's Python does not wait for ever."""
    entered, leave = threading.Event(), threading.Event()

    def wait(i: int) -> None:
        entered.set()
        leave.wait(timeout=60)

    thread = threading.Thread(target=lambda: library["repeat"](wait, 1))
    thread.start()
    assert entered.wait(timeout=60)
    assert library["spread"](lambda number: None) == 0
    leave.set()
    thread.join()


def test_objects_die_on_any_thread() -> None:
    class Callback:
        def __call__(self, value: Any) -> Any:  # noqa: ANN401
            return value

    functions = [runtime.convert(Callback()) for _ in range(400)]
    tensors = [runtime.tensor(np.zeros(8)) for _ in range(400)]

    def work(thread: int) -> None:
        for i in range(thread, 400, 4):
            functions[i](tensors[i])  # type: ignore[operator]
            functions[i] = tensors[i] = None  # type: ignore[call-overload]

    in_threads(work)
    gc.collect()
    assert not any(type(item) is Callback for item in gc.get_objects())
