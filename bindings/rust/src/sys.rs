//! The runtime's C interface, as `ekiden/runtime.h` has it: layouts, numbers of types, functions.
//!
//! Nothing here is safe; the other modules are. Only what they need is declared.

use std::os::raw::{c_char, c_int, c_void};

pub const ANY: i32 = -1;
pub const NONE: i32 = 0;
pub const INT: i32 = 1;
pub const BOOL: i32 = 2;
pub const FLOAT: i32 = 3;
pub const DTYPE: i32 = 5;
pub const DEVICE: i32 = 6;
pub const DLTENSOR_PTR: i32 = 7;
pub const RAW_STR: i32 = 8;
pub const BYTE_ARRAY_PTR: i32 = 9;
pub const SMALL_STR: i32 = 11;
pub const SMALL_BYTES: i32 = 12;
pub const OBJECT: i32 = 64;
pub const STR: i32 = 65;
pub const BYTES: i32 = 66;
pub const FUNCTION: i32 = 68;
pub const SHAPE: i32 = 69;
pub const TENSOR: i32 = 70;
pub const ARRAY: i32 = 71;
pub const MODULE: i32 = 73;
pub const ADT: i32 = 129;
pub const EXECUTABLE: i32 = 131;

pub const PART_GLOBAL: i32 = 0;
pub const PART_PARAMS: i32 = 1;
pub const MODULE_NAMES: i32 = 1;

#[repr(C)]
pub struct Object {
    pub refs: u64,
    pub type_index: i32,
    pub pad: u32,
    pub deleter: Option<unsafe extern "C" fn(*mut c_void, c_int)>,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct DType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Device {
    pub kind: i32,
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union Payload {
    pub int: i64,
    pub float: f64,
    pub ptr: *mut c_void,
    pub object: *mut Object,
    pub dtype: DType,
    pub device: Device,
    pub bytes: [u8; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    pub type_index: i32,
    pub small_len: u32,
    pub v: Payload,
}

impl Value {
    pub fn none() -> Value {
        Value { type_index: NONE, small_len: 0, v: Payload { int: 0 } }
    }
}

pub type Packed = unsafe extern "C" fn(*mut c_void, *const Value, i32, *mut Value) -> c_int;

#[repr(C)]
pub struct Function {
    pub base: Object,
    pub call: Packed,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    pub data: *const u8,
    pub size: usize,
}

#[repr(C)]
pub struct StringObject {
    pub base: Object,
    pub bytes: Bytes,
}

#[repr(C)]
pub struct Array {
    pub base: Object,
    pub data: *mut Value,
    pub size: i64,
}

#[repr(C)]
pub struct Adt {
    pub base: Object,
    pub tag: i32,
    pub size: i32,
}

#[repr(C)]
pub struct ErrorObject {
    pub base: Object,
    pub kind: Bytes,
    pub message: Bytes,
    pub backtrace: Bytes,
}

#[repr(C)]
#[derive(Debug)]
pub struct DlTensor {
    pub data: *mut c_void,
    pub device: Device,
    pub ndim: i32,
    pub dtype: DType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct TensorObject {
    pub base: Object,
    pub dl: DlTensor,
}

#[repr(C)]
pub struct Field {
    pub name: *const c_char,
    pub doc: *const c_char,
    pub kind: i32,
    pub size: i32,
    pub offset: i64,
    pub flags: u64,
    pub get: *const c_void,
    pub set: *const c_void,
    pub standard: Value,
}

#[repr(C)]
pub struct TypeDef {
    pub size: i64,
    pub create: *const c_void,
    pub doc: *const c_char,
    pub fields: *const Field,
    pub methods: *const c_void,
    pub n_fields: i32,
    pub n_methods: i32,
    pub build: *const c_void,
}

#[repr(C)]
pub struct TypeInfo {
    pub key: *const c_char,
    pub doc: *const c_char,
    pub index: i32,
    pub parent: i32,
    pub depth: i32,
    pub is_defined: i32,
    pub size: i64,
    pub create: *const c_void,
    pub fields: *const Field,
    pub methods: *const c_void,
    pub n_fields: i32,
    pub n_methods: i32,
    pub build: *const c_void,
}

extern "C" {
    pub fn ek_object_retain(object: *mut Object);
    pub fn ek_object_release(object: *mut Object);
    pub fn ek_function_new(
        this: *mut c_void,
        call: Packed,
        deleter: Option<unsafe extern "C" fn(*mut c_void)>,
        out: *mut *mut Object,
    ) -> c_int;
    pub fn ek_type_register(key: *const c_char, parent: i32) -> i32;
    pub fn ek_type_define(type_index: i32, def: *const TypeDef) -> c_int;
    pub fn ek_type_get(type_index: i32) -> *const TypeInfo;
    pub fn ek_object_new(index: i32, values: *const Value, n: i32, out: *mut *mut Object) -> c_int;
    pub fn ek_field_get(object: *const Object, field: *const Field, out: *mut Value) -> c_int;
    pub fn ek_field_set(object: *mut Object, field: *const Field, value: *const Value) -> c_int;
    pub fn ek_value_equal(a: *const Value, b: *const Value) -> c_int;
    pub fn ek_string_new(kind: i32, data: *const u8, size: usize, out: *mut Value) -> c_int;
    pub fn ek_container_new(
        kind: i32,
        tag: i32,
        items: *const Value,
        n: i64,
        out: *mut *mut Object,
    ) -> c_int;
    pub fn ek_error(kind: *const c_char, format: *const c_char, ...) -> c_int;
    pub fn ek_error_take() -> *mut Object;
    pub fn ek_registry_set(name: *const c_char, function: *mut Object, replace: c_int) -> c_int;
    pub fn ek_registry_get(name: *const c_char) -> *mut Object;
    pub fn ek_tensor_new(
        shape: *const i64,
        ndim: i32,
        dtype: DType,
        device: Device,
        out: *mut *mut Object,
    ) -> c_int;
    pub fn ek_tensor_copy(from: *const DlTensor, to: *const DlTensor) -> c_int;
    pub fn ek_module_load(path: *const c_char, out: *mut *mut Object) -> c_int;
    pub fn ek_module_get(module: *mut Object, name: *const c_char, out: *mut *mut Object) -> c_int;
    pub fn ek_module_part(module: *mut Object, part: i32, out: *mut Value) -> c_int;
    pub fn ek_num_threads(n: c_int) -> c_int;
    pub fn ek_executable_item(exe: *mut Object, part: i32, index: i64, out: *mut Value) -> c_int;
    pub fn ek_vm_new(executable: *mut Object, out: *mut *mut Object) -> c_int;
}
