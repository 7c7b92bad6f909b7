# find_package(ekiden-runtime): the targets ekiden::runtime, and ekiden::runtime_static for libraries
# that carry the runtime with them. Link one of them and include <ekiden/runtime.h> or
# <ekiden/runtime.hpp>.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/ekiden-runtime-targets.cmake)
