//! Objects of the runtime: counted references, types that any language may define, their fields.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::ptr;

use crate::error::{c_string, check, Error, Result};
use crate::sys;
use crate::value::{Args, Value};

/// One strong reference to whatever the runtime counts.
#[derive(Debug)]
pub(crate) struct Ref {
    ptr: ptr::NonNull<sys::Object>,
}

// SAFETY: counts are atomic, and any function of the runtime may be called from any thread; what is
// made of a reference and is not safe to share is not Send itself.
unsafe impl Send for Ref {}
unsafe impl Sync for Ref {}

impl Ref {
    /// Takes a reference over.
    ///
    /// # Safety
    /// `object` is one strong reference that belongs to the caller, or null.
    pub(crate) unsafe fn take(object: *mut sys::Object) -> Result<Ref> {
        ptr::NonNull::new(object)
            .map(|ptr| Ref { ptr })
            .ok_or_else(|| Error::new("InternalError", "an object expected, got none"))
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::Object {
        self.ptr.as_ptr()
    }

    pub(crate) fn type_index(&self) -> i32 {
        // SAFETY: the header of a live object.
        unsafe { (*self.as_ptr()).type_index }
    }
}

impl Clone for Ref {
    fn clone(&self) -> Ref {
        // SAFETY: we hold a reference.
        unsafe { sys::ek_object_retain(self.as_ptr()) };
        Ref { ptr: self.ptr }
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        // SAFETY: this reference is ours.
        unsafe { sys::ek_object_release(self.as_ptr()) };
    }
}

/// An object with fields. Whoever writes one must be alone with it, so it stays on its thread.
#[derive(Clone, Debug)]
pub struct Object {
    pub(crate) inner: Ref,
    stays: PhantomData<*const ()>,
}

/// What a field of a type holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    Int,
    Bool,
    Float,
    /// Any value.
    Any,
}

impl FieldKind {
    fn type_index(self) -> i32 {
        match self {
            FieldKind::Int => sys::INT,
            FieldKind::Bool => sys::BOOL,
            FieldKind::Float => sys::FLOAT,
            FieldKind::Any => sys::ANY,
        }
    }
}

/// Defines a type, which every language in the process then knows, by its key and its fields.
///
/// Errors: ValueError, TypeError where it is defined already.
pub fn define(key: &str, fields: &[(&str, FieldKind)]) -> Result<()> {
    let names: Vec<CString> = fields.iter().map(|(name, _)| c_string(name)).collect();
    let rows: Vec<sys::Field> = fields
        .iter()
        .zip(&names)
        .map(|((_, kind), name)| sys::Field {
            name: name.as_ptr(),
            doc: ptr::null(),
            kind: kind.type_index(),
            size: 0,
            offset: 0,
            flags: 0,
            get: ptr::null(),
            set: ptr::null(),
            standard: sys::Value::none(),
        })
        .collect();
    let def = sys::TypeDef {
        size: 0,
        create: ptr::null(),
        doc: ptr::null(),
        fields: rows.as_ptr(),
        methods: ptr::null(),
        n_fields: rows.len() as i32,
        n_methods: 0,
        build: ptr::null(),
    };
    // SAFETY: all that `def` points to lives until the call returns, which copies it.
    unsafe {
        let index = sys::ek_type_register(c_string(key).as_ptr(), sys::OBJECT);
        check(index)?;
        check(sys::ek_type_define(index, &def))?;
    }
    Ok(())
}

impl Object {
    pub(crate) fn of(inner: Ref) -> Object {
        Object { inner, stays: PhantomData }
    }

    /// An object of a defined type, from the values of its first fields.
    ///
    /// Errors: TypeError, ValueError.
    pub fn new(key: &str, values: &[Value]) -> Result<Object> {
        let args = Args::new(values)?;
        let mut out = ptr::null_mut();
        // SAFETY: `args` live during the call, which retains any value that it stores.
        unsafe {
            let index = sys::ek_type_register(c_string(key).as_ptr(), sys::ANY);
            if index < 0 {
                return Err(Error::new("TypeError", format!("there is no type '{key}'")));
            }
            check(sys::ek_object_new(index, args.as_ptr(), args.len(), &mut out))?;
            Ref::take(out).map(Object::of)
        }
    }

    fn info(&self) -> &'static sys::TypeInfo {
        // SAFETY: type information lives as long as the process.
        unsafe { &*sys::ek_type_get(self.inner.type_index()) }
    }

    fn rows(&self) -> &'static [sys::Field] {
        let info = self.info();
        if info.n_fields == 0 {
            return &[];
        }
        // SAFETY: the type has as many fields as its count says.
        unsafe { std::slice::from_raw_parts(info.fields, info.n_fields as usize) }
    }

    fn field(&self, name: &str) -> Result<&'static sys::Field> {
        let missing = || format!("'{}' has no field '{name}'", self.type_key());
        self.rows()
            .iter()
            .find(|row| name_of(row).to_bytes() == name.as_bytes())
            .ok_or_else(|| Error::new("AttributeError", missing()))
    }

    /// The key of its type, such as "relay.Function".
    pub fn type_key(&self) -> String {
        // SAFETY: keys never go away.
        unsafe { CStr::from_ptr(self.info().key) }.to_string_lossy().into_owned()
    }

    /// The names of its fields, those of its type's parents first.
    pub fn fields(&self) -> Vec<String> {
        self.rows().iter().map(|row| name_of(row).to_string_lossy().into_owned()).collect()
    }

    /// Returns the value of a field. Errors: AttributeError if there is no such field.
    pub fn get(&self, name: &str) -> Result<Value> {
        let field = self.field(name)?;
        let mut out = sys::Value::none();
        // SAFETY: a field of this object's type.
        unsafe {
            check(sys::ek_field_get(self.inner.as_ptr(), field, &mut out))?;
            Value::take(out)
        }
    }

    /// Changes a field. Errors: AttributeError, TypeError, ValueError.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<()> {
        let field = self.field(name)?;
        let args = Args::new(std::slice::from_ref(value))?;
        // SAFETY: a field of this object's type; the value is retained by the call.
        unsafe { check(sys::ek_field_set(self.inner.as_ptr(), field, args.as_ptr())) }?;
        Ok(())
    }

    /// Structural equality: by type and fields, not by identity.
    pub fn equals(&self, other: &Object) -> Result<bool> {
        let pair = [Value::Object(self.clone()), Value::Object(other.clone())];
        let args = Args::new(&pair)?;
        // SAFETY: two values.
        let code = unsafe { sys::ek_value_equal(args.as_ptr(), args.as_ptr().add(1)) };
        Ok(check(code)? == 1)
    }
}

fn name_of(row: &sys::Field) -> &CStr {
    // SAFETY: names never go away.
    unsafe { CStr::from_ptr(row.name) }
}
