//! Runs models that Ekiden compiled, and shares functions and objects with other languages.
//!
//! ```no_run
//! use ekiden::{lend, Input, Model};
//!
//! # fn main() -> ekiden::Result<()> {
//! let model = Model::load("model.eki")?;
//! let x = [1.0f32, 2.0, 3.0, 4.0];
//! let result = model.run("main", &[("x", Input::Lent(&lend(&x, &[1, 4])?))])?;
//! println!("{:?}", result.into_tensors()?[0].as_slice::<f32>()?);
//! # Ok(())
//! # }
//! ```
//!
//! Everything safe here is safe whatever is given; errors are values with the runtime's kind and
//! message. Nothing but the runtime's shared library is needed.

mod error;
mod function;
mod module;
mod object;
#[allow(dead_code)]
mod sys;
mod tensor;
mod value;

pub use error::{Error, Result};
pub use function::{registry, Function};
pub use module::{num_threads, Input, KernelTime, Model, Module};
pub use object::{define, FieldKind, Object};
pub use sys::{DType, Device};
pub use tensor::{lend, lend_mut, Bool, Element, Lent, LentMut, Tensor, CPU};
pub use value::Value;
