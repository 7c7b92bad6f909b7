//! Modules, which give functions by name, and models, which run with named inputs.

use std::path::Path;
use std::ptr;

use crate::error::{c_string, check, Error, Result};
use crate::function::{registry, Function};
use crate::object::Ref;
use crate::sys;
use crate::tensor::{Lent, LentMut, Tensor};
use crate::value::{Args, Value};

/// A module looks up functions by name: a compiled model, a shared library.
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) inner: Ref,
}

impl Module {
    /// The module in a file: `.eki`, `.so`.
    ///
    /// Errors: OSError, LoadError, ValueError for another suffix.
    pub fn load(path: impl AsRef<Path>) -> Result<Module> {
        let path = path.as_ref().to_string_lossy().into_owned();
        let mut out = ptr::null_mut();
        // SAFETY: the path is zero-terminated.
        unsafe {
            check(sys::ek_module_load(c_string(&path).as_ptr(), &mut out))?;
            Ok(Module { inner: Ref::take(out)? })
        }
    }

    /// Returns the function of a name, of this module or of an imported one. Errors: AttributeError.
    pub fn function(&self, name: &str) -> Result<Function> {
        let mut out = ptr::null_mut();
        // SAFETY: an owned function, or null.
        unsafe {
            check(sys::ek_module_get(self.inner.as_ptr(), c_string(name).as_ptr(), &mut out))?;
            if out.is_null() {
                let known = self.names()?.join(", ");
                let message = format!("module: no function named '{name}'; there are {known}");
                return Err(Error::new("AttributeError", message));
            }
            Ok(Function { inner: Ref::take(out)? })
        }
    }

    /// The names of its functions; none of a shared library, which cannot list them.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut out = sys::Value::none();
        // SAFETY: an owned array.
        unsafe {
            check(sys::ek_module_part(self.inner.as_ptr(), sys::MODULE_NAMES, &mut out))?;
            strings(Value::take(out)?)
        }
    }
}

fn strings(value: Value) -> Result<Vec<String>> {
    let Value::Array(items) = value else {
        return Err(Error::new("TypeError", "an array of texts expected"));
    };
    let texts = items.into_iter().map(|each| match each {
        Value::Str(text) => Ok(text),
        other => Err(Error::new("TypeError", format!("a text expected, got {other:?}"))),
    });
    texts.collect()
}

/// A compiled model of an `.eki` file: functions whose inputs have names. Any thread may run it, and
/// several at once.
#[derive(Clone, Debug)]
pub struct Model {
    module: Module,
    executable: Ref,
}

/// How often a kernel ran, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    pub name: String,
    pub calls: i64,
    pub nanoseconds: i64,
}

/// An input by its name: a tensor, or memory that is lent.
pub enum Input<'a> {
    Tensor(&'a Tensor),
    Lent(&'a Lent<'a>),
}

impl Model {
    /// Errors: OSError, LoadError, TypeError for a module that is no model.
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        let module = Module::load(path)?;
        let executable = module.function("get_executable").and_then(|f| f.call(&[]));
        match executable {
            Ok(Value::Object(object)) if object.inner.type_index() == sys::EXECUTABLE => {
                Ok(Model { module, executable: object.inner })
            }
            _ => Err(Error::new("TypeError", "the module is no model with named inputs")),
        }
    }

    /// The model as a module, whose functions take their arguments by position.
    pub fn module(&self) -> &Module {
        &self.module
    }

    fn part(&self, part: i32, index: i64) -> Result<Value> {
        let mut out = sys::Value::none();
        // SAFETY: an executable; the value is owned.
        unsafe {
            check(sys::ek_executable_item(self.executable.as_ptr(), part, index, &mut out))?;
            Value::take(out)
        }
    }

    fn index_of(&self, function: &str) -> Result<i64> {
        let names = self.module.names()?;
        let found = names.iter().position(|name| name == function);
        let message =
            || format!("there is no function '{function}'; there are {}", names.join(", "));
        Ok(found.ok_or_else(|| Error::new("AttributeError", message()))? as i64)
    }

    /// The names of a function's inputs, in their order. Errors: AttributeError.
    pub fn inputs(&self, function: &str) -> Result<Vec<String>> {
        strings(self.part(sys::PART_PARAMS, self.index_of(function)?)?)
    }

    fn positional_args<'a>(&self, function: &str, inputs: &'a [(&str, Input<'a>)]) -> Result<Args<'a>> {
        let wanted = self.inputs(function)?;
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !wanted.iter().any(|w| w == name)) {
            let message = format!("no input '{name}'; there are {}", wanted.join(", "));
            return Err(Error::new("InputError", message));
        }
        let mut args = Args::new(&[])?;
        for name in &wanted {
            let given = inputs.iter().find(|(each, _)| each == name);
            let missing = || Error::new("InputError", format!("input '{name}' is missing"));
            match &given.ok_or_else(missing)?.1 {
                Input::Tensor(tensor) => args.push_object(&tensor.inner),
                Input::Lent(lent) => args.push_lent(lent.dl()),
            }
        }
        Ok(args)
    }

    /// Runs a function with inputs by name.
    ///
    /// Errors: InputError names the input that is missing, too many, or of another type or shape.
    pub fn run(&self, function: &str, inputs: &[(&str, Input)]) -> Result<Value> {
        self.module.function(function)?.call_with(&self.positional_args(function, inputs)?)
    }

    /// The same, with results written to memory of the caller.
    ///
    /// Errors: ValueError where there are more or fewer, or one has another shape or type.
    pub fn run_into(
        &self,
        function: &str,
        inputs: &[(&str, Input)],
        outputs: &mut [LentMut],
    ) -> Result<()> {
        let results = self.run(function, inputs)?.into_tensors()?;
        if results.len() != outputs.len() {
            let message = format!("expected {} outputs, got {}", results.len(), outputs.len());
            return Err(Error::new("ValueError", message));
        }
        for (at, (result, output)) in results.iter().zip(outputs.iter()).enumerate() {
            let (made, given) = (result.dl(), output.dl());
            if result.shape() != output.shape() || made.dtype != given.dtype {
                let shown =
                    |dtype: sys::DType, shape: &[i64]| format!("{} {shape:?}", dtype.name());
                let wanted = shown(made.dtype, result.shape());
                let got = shown(given.dtype, output.shape());
                let message = format!("output {at}: shape and type {wanted} expected, got {got}");
                return Err(Error::new("ValueError", message));
            }
        }
        for (result, output) in results.iter().zip(outputs.iter_mut()) {
            // SAFETY: of one shape and dtype; the memory is lent to be written.
            unsafe { check(sys::ek_tensor_copy(result.dl(), output.dl())) }?;
        }
        Ok(())
    }

    /// Runs a function and tells how long each of its kernels took.
    pub fn profile(
        &self,
        function: &str,
        inputs: &[(&str, Input)],
    ) -> Result<(Value, Vec<KernelTime>)> {
        let mut machine = ptr::null_mut();
        // SAFETY: a new machine, owned.
        let machine = unsafe {
            check(sys::ek_vm_new(self.executable.as_ptr(), &mut machine))?;
            Ref::take(machine)?
        };
        let mut of = Args::new(&[])?;
        of.push_object(&machine);
        let Value::Module(debugger) = registry::get("ek.vm.module")?.call_with(&of)? else {
            return Err(Error::new("InternalError", "ek.vm.module: no module"));
        };
        let mut args = self.positional_args(function, inputs)?;
        args.push_front_int(self.index_of(function)?);
        let Value::Array(items) = debugger.function("kernels")?.call_with(&args)? else {
            return Err(Error::new("InternalError", "kernels: no array"));
        };
        let mut items = items.into_iter();
        let result = items.next().unwrap_or(Value::None);
        let rest: Vec<Value> = items.collect();
        let times = rest.chunks_exact(3).filter_map(|row| match row {
            [Value::Str(name), Value::Int(calls), Value::Int(nanoseconds)] => {
                Some(KernelTime { name: name.clone(), calls: *calls, nanoseconds: *nanoseconds })
            }
            _ => None,
        });
        Ok((result, times.collect()))
    }

    /// How many threads a run has at most; 0 for as many as the process (`num_threads`).
    pub fn set_num_threads(&self, n: i64) -> Result<()> {
        if n < 0 {
            return Err(Error::new("ValueError", format!("threads: 0 or more expected, got {n}")));
        }
        let count = Value::Int(n);
        let mut args = Args::new(&[])?;
        args.push_object(&self.executable);
        args.push(&count)?;
        registry::get("ek.executable.num_threads")?.call_with(&args)?;
        Ok(())
    }

    /// What `set_num_threads` said.
    pub fn num_threads(&self) -> Result<i64> {
        let mut args = Args::new(&[])?;
        args.push_object(&self.executable);
        match registry::get("ek.executable.num_threads")?.call_with(&args)? {
            Value::Int(n) => Ok(n),
            other => Err(Error::new("InternalError", format!("a number expected, got {other:?}"))),
        }
    }
}

/// Threads that share a loop, the caller included; with `n` above 0, first sets it.
pub fn num_threads(n: i32) -> i32 {
    // SAFETY: any number is.
    unsafe { sys::ek_num_threads(n) }
}
