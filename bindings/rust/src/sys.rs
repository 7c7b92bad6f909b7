//! The runtime's C interface, as `ekiden/runtime.h` has it: layouts, numbers of types, functions.
//!
//! Nothing here is safe; the other modules are. Only what they need is declared.

use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};
use std::sync::OnceLock;

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

/// Declares functions of the runtime: each is found by its name in the library, when the first is
/// called. A program that uses this crate is linked with nothing, and so builds and starts anywhere.
macro_rules! runtime_functions {
    ($(fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        struct Functions {
            ek_error: unsafe extern "C" fn(*const c_char, *const c_char, ...) -> c_int,
            $($name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)*
        }

        impl Functions {
            fn load() -> Functions {
                let library = open_library();
                // SAFETY: the runtime's functions have these signatures.
                unsafe {
                    Functions {
                        ek_error: std::mem::transmute(address(library, c"ek_error")),
                        $($name: std::mem::transmute(address(library, c_name!($name))),)*
                    }
                }
            }
        }

        $(
            /// # Safety
            /// See the function of this name in runtime.h.
            pub unsafe fn $name($($arg: $kind),*) $(-> $result)? {
                (functions().$name)($($arg),*)
            }
        )*
    };
}

macro_rules! c_name {
    ($name:ident) => {
        CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
    };
}

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const FILE: &str = "libekiden_runtime.so";
const RTLD_NOW: c_int = 2;
const RTLD_GLOBAL: c_int = 0x100;

fn functions() -> &'static Functions {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::load)
}

/// The library in the folder that EKIDEN_LIB_DIR names now, or named when this was built, or where the
/// system looks. Panics where there is none, as there is nothing of the runtime to make an error with.
fn open_library() -> *mut c_void {
    let now = std::env::var("EKIDEN_LIB_DIR").ok();
    let folders = [now.as_deref(), option_env!("EKIDEN_BUILT_WITH")];
    let mut paths: Vec<String> = folders.iter().flatten().map(|f| format!("{f}/{FILE}")).collect();
    paths.push(FILE.to_string());
    let mut said = String::new();
    for path in paths {
        let Ok(path) = CString::new(path) else { continue };
        // SAFETY: a text; what the library runs when it is opened is the runtime's.
        unsafe {
            let library = dlopen(path.as_ptr(), RTLD_NOW | RTLD_GLOBAL);
            if !library.is_null() {
                return library;
            }
            said = CStr::from_ptr(dlerror()).to_string_lossy().into_owned();
        }
    }
    panic!("{FILE} is not there: EKIDEN_LIB_DIR names its folder ({said})");
}

/// Panics for a library of another version, which has no such function.
fn address(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: an open library, and a text.
    let found = unsafe { dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{FILE} has no {}: it is of another version", name.to_string_lossy());
    found
}

/// The error of this thread, whose message may have any characters. Gives -1.
///
/// # Safety
/// Both are texts that end with a zero.
pub unsafe fn ek_error(kind: *const c_char, format: *const c_char, message: *const c_char) -> c_int {
    (functions().ek_error)(kind, format, message)
}

runtime_functions! {
    fn ek_object_retain(object: *mut Object);
    fn ek_object_release(object: *mut Object);
    fn ek_function_new(
        this: *mut c_void,
        call: Packed,
        deleter: Option<unsafe extern "C" fn(*mut c_void)>,
        out: *mut *mut Object,
    ) -> c_int;
    fn ek_type_register(key: *const c_char, parent: i32) -> i32;
    fn ek_type_define(type_index: i32, def: *const TypeDef) -> c_int;
    fn ek_type_get(type_index: i32) -> *const TypeInfo;
    fn ek_object_new(index: i32, values: *const Value, n: i32, out: *mut *mut Object) -> c_int;
    fn ek_field_get(object: *const Object, field: *const Field, out: *mut Value) -> c_int;
    fn ek_field_set(object: *mut Object, field: *const Field, value: *const Value) -> c_int;
    fn ek_value_equal(a: *const Value, b: *const Value) -> c_int;
    fn ek_string_new(kind: i32, data: *const u8, size: usize, out: *mut Value) -> c_int;
    fn ek_container_new(
        kind: i32,
        tag: i32,
        items: *const Value,
        n: i64,
        out: *mut *mut Object,
    ) -> c_int;
    fn ek_error_take() -> *mut Object;
    fn ek_registry_set(name: *const c_char, function: *mut Object, replace: c_int) -> c_int;
    fn ek_registry_get(name: *const c_char) -> *mut Object;
    fn ek_tensor_new(
        shape: *const i64,
        ndim: i32,
        dtype: DType,
        device: Device,
        out: *mut *mut Object,
    ) -> c_int;
    fn ek_tensor_copy(from: *const DlTensor, to: *const DlTensor) -> c_int;
    fn ek_module_load(path: *const c_char, out: *mut *mut Object) -> c_int;
    fn ek_module_get(module: *mut Object, name: *const c_char, out: *mut *mut Object) -> c_int;
    fn ek_module_part(module: *mut Object, part: i32, out: *mut Value) -> c_int;
    fn ek_num_threads(n: c_int) -> c_int;
    fn ek_executable_item(exe: *mut Object, part: i32, index: i64, out: *mut Value) -> c_int;
    fn ek_vm_new(executable: *mut Object, out: *mut *mut Object) -> c_int;
}
