//! Errors of the runtime, which are this language's too.

use std::ffi::CString;
use std::fmt;

use crate::sys;

/// What went wrong: its kind ("InputError", "LoadError", ...), a message that names the thing, and
/// where it came up, the innermost call first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: String,
    pub message: String,
    pub backtrace: String,
}

/// What the functions of this crate give.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a kind, to be given by functions that the runtime calls.
    pub fn new(kind: &str, message: impl Into<String>) -> Error {
        Error { kind: kind.to_string(), message: message.into(), backtrace: String::new() }
    }

    /// This thread's error, which is none any more.
    pub(crate) fn take() -> Error {
        // SAFETY: an error that is handed over is ours, and its texts live as long as it does.
        unsafe {
            let object = sys::ek_error_take();
            if object.is_null() {
                return Error::new("InternalError", "a call failed without an error");
            }
            let error = &*(object as *const sys::ErrorObject);
            let taken = Error {
                kind: text(error.kind),
                message: text(error.message),
                backtrace: text(error.backtrace),
            };
            sys::ek_object_release(object);
            taken
        }
    }

    /// Makes this the error of the thread.
    pub(crate) fn set(&self) {
        let kind = c_string(&self.kind);
        let message = c_string(&self.message);
        // SAFETY: both are zero-terminated, and copied.
        unsafe { sys::ek_error(kind.as_ptr(), c"%s".as_ptr(), message.as_ptr()) };
    }
}

/// `code` 0 or more as it is, -1 as this thread's error.
pub(crate) fn check(code: i32) -> Result<i32> {
    if code < 0 {
        Err(Error::take())
    } else {
        Ok(code)
    }
}

/// Text up to its first zero.
pub(crate) fn c_string(text: &str) -> CString {
    let whole = text.split('\0').next().unwrap_or("");
    CString::new(whole).unwrap_or_default()
}

/// A copy of text of the runtime.
///
/// # Safety
/// `bytes` must be readable.
pub(crate) unsafe fn text(bytes: sys::Bytes) -> String {
    if bytes.size == 0 {
        return String::new();
    }
    String::from_utf8_lossy(std::slice::from_raw_parts(bytes.data, bytes.size)).into_owned()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}
