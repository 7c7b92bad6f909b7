# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The binding to the C runtime: the only place that knows both worlds.

Split by noun: each file below holds one kind of object and how it crosses.
"""
cimport cython
cimport numpy as np
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Fetch, PyErr_NormalizeException, PyErr_Occurred
from cpython.object cimport PyObject
from cpython.pycapsule cimport (PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_IsValid,
                                PyCapsule_New, PyCapsule_SetContext, PyCapsule_SetName)
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_REFCNT, Py_XDECREF
from cpython.tuple cimport PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.type cimport PyType_Modified
from libc.limits cimport INT_MAX
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset, strcmp, strlen

import builtins
import ctypes
import importlib
import math
import operator
import os
import sys
import threading
import types
from typing import NamedTuple

import numpy

from ekiden.runtime import errors
from ekiden.runtime.binding.dtypes import missing_numpy_dtype_message, numpy_type
from ekiden._lazy import load_deferred
from ekiden.runtime.artifact.metadata import Tables, read_metadata

np.import_array()

include "_abi.pxi"
include "_error.pxi"
include "_dtype.pxi"
include "_object.pxi"
include "_tensor.pxi"
include "_dlpack.pxi"
include "_container.pxi"
include "_node.pxi"
include "_convert.pxi"
include "_function.pxi"
include "_module.pxi"
include "_foreign.pxi"
include "_executable.pxi"
include "_rpc.pxi"
include "_files.pxi"

# Python does nothing with this signal but end: whoever sets a handler later has it.
_guard = get_global_func("ek.files.guard", True)  # None where there are no signals
if _guard is not None:
    _guard(1)
