//! Values that cross into the runtime and back.

use std::marker::PhantomData;
use std::ptr;

use crate::error::{check, text, Error, Result};
use crate::function::Function;
use crate::module::Module;
use crate::object::{Object, Ref};
use crate::sys::{self, DType, Device};
use crate::tensor::Tensor;

/// A value of the runtime as one of Rust. Objects of other types are `Object`.
#[derive(Clone, Debug)]
pub enum Value {
    None,
    Int(i64),
    Bool(bool),
    Float(f64),
    Str(String),
    Bytes(Vec<u8>),
    DType(DType),
    Device(Device),
    Tensor(Tensor),
    /// An array, and a tuple of a program.
    Array(Vec<Value>),
    Function(Function),
    Module(Module),
    Object(Object),
}

impl Value {
    /// What a value that the caller owns stands for.
    ///
    /// # Safety
    /// `value` is valid, and what it refers to belongs to the caller.
    pub(crate) unsafe fn take(value: sys::Value) -> Result<Value> {
        let result = Value::read(&value);
        if value.type_index >= sys::OBJECT {
            sys::ek_object_release(value.v.object);
        }
        result
    }

    /// What a borrowed value stands for.
    ///
    /// # Safety
    /// `value` is valid.
    pub(crate) unsafe fn read(value: &sys::Value) -> Result<Value> {
        Ok(match value.type_index {
            sys::NONE => Value::None,
            sys::INT => Value::Int(value.v.int),
            sys::BOOL => Value::Bool(value.v.int != 0),
            sys::FLOAT => Value::Float(value.v.float),
            sys::DTYPE => Value::DType(value.v.dtype),
            sys::DEVICE => Value::Device(value.v.device),
            sys::SMALL_STR | sys::RAW_STR | sys::STR => Value::Str(text(bytes_of(value))),
            sys::SMALL_BYTES | sys::BYTE_ARRAY_PTR | sys::BYTES => {
                let bytes = bytes_of(value);
                Value::Bytes(match bytes.size {
                    0 => Vec::new(),
                    size => std::slice::from_raw_parts(bytes.data, size).to_vec(),
                })
            }
            index if index >= sys::OBJECT => Value::of_object(value.v.object)?,
            index => {
                let message = format!("read value: one of type {index} is not known here");
                return Err(Error::new("TypeError", message));
            }
        })
    }

    unsafe fn of_object(object: *mut sys::Object) -> Result<Value> {
        let items = match (*object).type_index {
            sys::ARRAY => {
                let array = &*(object as *const sys::Array);
                Some((array.data as *const sys::Value, array.size as usize))
            }
            sys::ADT if (*(object as *const sys::Adt)).tag == 0 => {
                let adt = object as *const sys::Adt;
                Some((adt.add(1) as *const sys::Value, (*adt).size as usize))
            }
            _ => None,
        };
        if let Some((data, size)) = items {
            let each = (0..size).map(|i| Value::read(&*data.add(i)));
            return Ok(Value::Array(each.collect::<Result<_>>()?));
        }
        sys::ek_object_retain(object);
        let inner = Ref::take(object)?;
        Ok(match inner.type_index() {
            sys::TENSOR => Value::Tensor(Tensor { inner }),
            sys::FUNCTION => Value::Function(Function { inner }),
            sys::MODULE => Value::Module(Module { inner }),
            _ => Value::Object(Object::of(inner)),
        })
    }

    /// The tensors of a result: of one, or of a tuple of several.
    ///
    /// Errors: TypeError for any other type.
    pub fn into_tensors(self) -> Result<Vec<Tensor>> {
        match self {
            Value::Tensor(tensor) => Ok(vec![tensor]),
            Value::Array(items) => {
                let parts = items.into_iter().map(Value::into_tensors).collect::<Result<Vec<_>>>();
                Ok(parts?.into_iter().flatten().collect())
            }
            other => Err(Error::new("TypeError", format!("a tensor expected, got {other:?}"))),
        }
    }
}

unsafe fn bytes_of(value: &sys::Value) -> sys::Bytes {
    match value.type_index {
        sys::SMALL_STR | sys::SMALL_BYTES => {
            sys::Bytes { data: value.v.bytes.as_ptr(), size: value.small_len as usize }
        }
        sys::RAW_STR => {
            let text = std::ffi::CStr::from_ptr(value.v.ptr as *const _);
            sys::Bytes { data: text.as_ptr() as *const u8, size: text.to_bytes().len() }
        }
        sys::BYTE_ARRAY_PTR => *(value.v.ptr as *const sys::Bytes),
        _ => (*(value.v.object as *const sys::StringObject)).bytes,
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident;)*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Value {
                Value::$variant(value.into())
            }
        })*
    };
}

from! {
    i64 => Int; i32 => Int; bool => Bool; f64 => Float; &str => Str; String => Str;
    Vec<u8> => Bytes; Tensor => Tensor; Vec<Value> => Array; Function => Function;
    Module => Module; Object => Object; Device => Device; DType => DType;
}

/// Arguments of a call in the runtime's layout; dropping them releases what they own.
pub(crate) struct Args<'a> {
    values: Vec<sys::Value>,
    owned: Vec<sys::Value>,
    source: PhantomData<&'a [Value]>,
}

impl<'a> Args<'a> {
    pub(crate) fn new(source: &'a [Value]) -> Result<Args<'a>> {
        let mut args = Args { values: Vec::new(), owned: Vec::new(), source: PhantomData };
        for each in source {
            let value = args.encode(each)?;
            args.values.push(value);
        }
        Ok(args)
    }

    /// Adds a tensor that is lent.
    pub(crate) fn push_lent(&mut self, dl: &'a sys::DlTensor) {
        let v = sys::Payload { ptr: dl as *const sys::DlTensor as *mut _ };
        self.values.push(sys::Value { type_index: sys::DLTENSOR_PTR, small_len: 0, v });
    }

    pub(crate) fn push_object(&mut self, object: &'a Ref) {
        let v = sys::Payload { object: object.as_ptr() };
        self.values.push(sys::Value { type_index: object.type_index(), small_len: 0, v });
    }

    pub(crate) fn push_front_int(&mut self, number: i64) {
        let v = sys::Payload { int: number };
        self.values.insert(0, sys::Value { type_index: sys::INT, small_len: 0, v });
    }

    pub(crate) fn push(&mut self, value: &'a Value) -> Result<()> {
        let value = self.encode(value)?;
        self.values.push(value);
        Ok(())
    }

    pub(crate) fn as_ptr(&self) -> *const sys::Value {
        self.values.as_ptr()
    }

    pub(crate) fn len(&self) -> i32 {
        self.values.len() as i32
    }

    fn encode(&mut self, value: &Value) -> Result<sys::Value> {
        let plain = |type_index, v| sys::Value { type_index, small_len: 0, v };
        let object = |object: &Ref| {
            let v = sys::Payload { object: object.as_ptr() };
            sys::Value { type_index: object.type_index(), small_len: 0, v }
        };
        // A payload of fewer than 8 bytes has zeros behind it.
        let mut v = sys::Payload { int: 0 };
        Ok(match value {
            Value::None => sys::Value::none(),
            Value::Int(number) => plain(sys::INT, sys::Payload { int: *number }),
            Value::Bool(flag) => plain(sys::BOOL, sys::Payload { int: i64::from(*flag) }),
            Value::Float(number) => plain(sys::FLOAT, sys::Payload { float: *number }),
            Value::DType(dtype) => {
                v.dtype = *dtype;
                plain(sys::DTYPE, v)
            }
            Value::Device(device) => plain(sys::DEVICE, sys::Payload { device: *device }),
            Value::Str(text) => self.bytes(sys::STR, text.as_bytes())?,
            Value::Bytes(bytes) => self.bytes(sys::BYTES, bytes)?,
            Value::Tensor(tensor) => object(&tensor.inner),
            Value::Function(function) => object(&function.inner),
            Value::Module(module) => object(&module.inner),
            Value::Object(each) => object(&each.inner),
            Value::Array(items) => {
                let inside = Args::new(items)?;
                let mut out = ptr::null_mut();
                let (data, n) = (inside.as_ptr(), inside.values.len() as i64);
                // SAFETY: the items live during the call, which retains them.
                unsafe { check(sys::ek_container_new(sys::ARRAY, 0, data, n, &mut out)) }?;
                let made = plain(sys::ARRAY, sys::Payload { object: out });
                self.owned.push(made);
                made
            }
        })
    }

    fn bytes(&mut self, kind: i32, data: &[u8]) -> Result<sys::Value> {
        let mut out = sys::Value::none();
        // SAFETY: the bytes are copied.
        unsafe { check(sys::ek_string_new(kind, data.as_ptr(), data.len(), &mut out)) }?;
        self.owned.push(out);
        Ok(out)
    }

    /// The first value, owned: for a result.
    pub(crate) fn into_first(mut self) -> sys::Value {
        let value = self.values.first().copied().unwrap_or(sys::Value::none());
        let is_made = self.owned.iter().position(|each| same(each, &value));
        match is_made {
            Some(at) => drop(self.owned.swap_remove(at)),
            None if value.type_index >= sys::OBJECT => {
                // SAFETY: the object is live, and the result is one more reference to it.
                unsafe { sys::ek_object_retain(value.v.object) }
            }
            None => {}
        }
        value
    }
}

fn same(a: &sys::Value, b: &sys::Value) -> bool {
    // SAFETY: every payload has 8 bytes that are set.
    a.type_index == b.type_index && unsafe { a.v.int == b.v.int }
}

impl Drop for Args<'_> {
    fn drop(&mut self) {
        for value in &self.owned {
            if value.type_index >= sys::OBJECT {
                // SAFETY: made by us.
                unsafe { sys::ek_object_release(value.v.object) };
            }
        }
    }
}
