//! Functions of the runtime, and functions of Rust that it calls.

use std::any::Any;
use std::os::raw::{c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use crate::error::{c_string, check, Error, Result};
use crate::object::Ref;
use crate::sys;
use crate::value::{Args, Value};

/// A function that any language may have made.
#[derive(Clone, Debug)]
pub struct Function {
    pub(crate) inner: Ref,
}

type Callback = dyn Fn(&[Value]) -> Result<Value> + Send + Sync;

impl Function {
    /// A function that every language can call. It may be called from any thread, and at once from
    /// several; one that panics is a RuntimeError there.
    pub fn new<F>(body: F) -> Result<Function>
    where
        F: Fn(&[Value]) -> Result<Value> + Send + Sync + 'static,
    {
        let boxed: Box<Box<Callback>> = Box::new(Box::new(body));
        let this = Box::into_raw(boxed) as *mut c_void;
        let mut out = ptr::null_mut();
        // SAFETY: `this` is what the two functions below take it for; on failure it is still ours.
        unsafe {
            if sys::ek_function_new(this, call_back, Some(delete), &mut out) < 0 {
                delete(this);
                return Err(Error::take());
            }
            Ok(Function { inner: Ref::take(out)? })
        }
    }

    /// Calls the function. Errors: the function's own.
    pub fn call(&self, args: &[Value]) -> Result<Value> {
        self.call_with(&Args::new(args)?)
    }

    pub(crate) fn call_with(&self, args: &Args<'_>) -> Result<Value> {
        let mut ret = sys::Value::none();
        let this = self.inner.as_ptr();
        // SAFETY: a function object, whose arguments live during the call.
        unsafe {
            let function = &*(this as *const sys::Function);
            check((function.call)(this.cast(), args.as_ptr(), args.len(), &mut ret))?;
            Value::take(ret)
        }
    }
}

unsafe extern "C" fn call_back(
    this: *mut c_void,
    args: *const sys::Value,
    n: i32,
    ret: *mut sys::Value,
) -> c_int {
    let body = &*(this as *const Box<Callback>);
    let run = || -> Result<sys::Value> {
        let values: Vec<Value> =
            (0..n as usize).map(|i| Value::read(&*args.add(i))).collect::<Result<_>>()?;
        let result = [body(&values)?];
        let encoded = Args::new(&result)?;
        Ok(encoded.into_first())
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => {
            *ret = value;
            return 0;
        }
        Ok(Err(error)) => error.set(),
        Err(panic) => Error::new("RuntimeError", panic_message(&*panic)).set(),
    }
    -1
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a function of Rust panicked".to_string())
}

unsafe extern "C" fn delete(this: *mut c_void) {
    drop(Box::from_raw(this as *mut Box<Callback>));
}

/// The functions that all languages of the process know by name.
pub mod registry {
    use super::*;

    /// Gives a function a name. Errors: ValueError where it is taken.
    pub fn register(name: &str, function: &Function) -> Result<()> {
        let name = c_string(name);
        // SAFETY: the name is copied and the function retained.
        unsafe { check(sys::ek_registry_set(name.as_ptr(), function.inner.as_ptr(), 0)) }?;
        Ok(())
    }

    /// The function of a name. Errors: KeyError.
    pub fn get(name: &str) -> Result<Function> {
        // SAFETY: an owned reference, or null.
        let found = unsafe { sys::ek_registry_get(c_string(name).as_ptr()) };
        if found.is_null() {
            return Err(Error::new("KeyError", format!("there is no function '{name}'")));
        }
        // SAFETY: as above.
        Ok(Function { inner: unsafe { Ref::take(found)? } })
    }

    /// Takes a name away; whether there was a function of it.
    pub fn remove(name: &str) -> Result<bool> {
        // SAFETY: without a function the name is removed.
        let code = unsafe { sys::ek_registry_set(c_string(name).as_ptr(), ptr::null_mut(), 1) };
        Ok(check(code)? == 1)
    }
}
