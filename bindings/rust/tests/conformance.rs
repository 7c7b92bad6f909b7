//! Runs bindings/conformance.json: `EKIDEN_CONFORMANCE=folder cargo test`, where the folder has the
//! script and its models. Without it there is nothing to run.

mod json;

use std::collections::HashMap;
use std::path::PathBuf;

use ekiden::{
    define, lend_mut, registry, Bool, DType, Element, Error, FieldKind, Function, Input, LentMut,
    Model, Module, Object, Result, Tensor, Value,
};
use json::Json;

/// What a step may refer to by name. A module is a model too where its file has named inputs.
enum Thing {
    Module(Module, Option<Model>),
    Object(Object),
    Closed,
}

struct Runner {
    folder: PathBuf,
    things: HashMap<String, Thing>,
}

macro_rules! by_dtype {
    ($name:expr, $run:ident) => {
        match $name {
            "float32" => $run!(f32),
            "float64" => $run!(f64),
            "int8" => $run!(i8),
            "int32" => $run!(i32),
            "int64" => $run!(i64),
            "uint8" => $run!(u8),
            other => panic!("no tensors of {other} here"),
        }
    };
}

fn numbers(data: &[Json]) -> Vec<f64> {
    data.iter().map(Json::number).collect()
}

fn shape_of(json: &Json) -> Vec<i64> {
    json.list("shape").iter().map(|extent| extent.number() as i64).collect()
}

fn tensor(json: &Json) -> Tensor {
    let (data, shape) = (numbers(json.list("data")), shape_of(json));
    macro_rules! make {
        ($type:ty) => {{
            let cast: Vec<$type> = data.iter().map(|&x| x as $type).collect();
            Tensor::from_slice(&cast, &shape)
        }};
    }
    let made = match json.text("tensor") {
        "bool" => {
            let bools: Vec<Bool> = data.iter().map(|&x| Bool(u8::from(x != 0.0))).collect();
            Tensor::from_slice(&bools, &shape)
        }
        dtype => by_dtype!(dtype, make),
    };
    made.expect("a tensor of the script")
}

fn elements(tensor: &Tensor) -> Vec<f64> {
    macro_rules! read {
        ($type:ty) => {
            tensor.to_vec::<$type>().unwrap().iter().map(|&x| x as f64).collect()
        };
    }
    by_dtype!(tensor.dtype().name().as_str(), read)
}

fn all_elements(value: &Value) -> Vec<f64> {
    match value {
        Value::Tensor(tensor) => elements(tensor),
        other => panic!("a tensor expected, got {other:?}"),
    }
}

fn callback(name: &str) -> Result<Function> {
    match name {
        "double" => Function::new(|args| match args {
            [Value::Int(x)] => Ok(Value::Int(2 * x)),
            [Value::Float(x)] => Ok(Value::Float(2.0 * x)),
            [Value::Str(x)] => Ok(Value::Str(format!("{x}{x}"))),
            _ => Err(Error::new("TypeError", "double: one number or text expected")),
        }),
        "echo" => Function::new(|args| Ok(args[0].clone())),
        "sum" => Function::new(|args| match args {
            [Value::Tensor(x)] => {
                Ok(Value::Float(x.as_slice::<f32>()?.iter().map(|&x| f64::from(x)).sum()))
            }
            _ => Err(Error::new("TypeError", "sum: one tensor expected")),
        }),
        "apply" => Function::new(|args| match args {
            [Value::Function(f), rest @ ..] => f.call(rest),
            _ => Err(Error::new("TypeError", "apply: a function expected first")),
        }),
        "fail" => Function::new(|_| Err(Error::new("ValueError", "told to fail"))),
        other => panic!("no callback {other}"),
    }
}

fn value(json: &Json) -> Value {
    let Json::Map(map) = json else { panic!("a value expected, got {json:?}") };
    if map.contains_key("tensor") {
        return tensor(json).into();
    }
    let (kind, inside) = map.iter().next().expect("a value has a kind");
    match (kind.as_str(), inside) {
        ("none", _) => Value::None,
        ("int", Json::Number(x)) => Value::Int(*x as i64),
        ("float", Json::Number(x)) => Value::Float(*x),
        ("bool", Json::Bool(x)) => Value::Bool(*x),
        ("str", Json::Text(x)) => Value::Str(x.clone()),
        ("array", Json::List(items)) => Value::Array(items.iter().map(value).collect()),
        ("callback", Json::Text(name)) => callback(name).unwrap().into(),
        other => panic!("no value {other:?}"),
    }
}

fn values(items: &[Json]) -> Vec<Value> {
    items.iter().map(value).collect()
}

fn is(got: &Value, wanted: &Json) -> bool {
    match (got, value(wanted)) {
        (Value::None, Value::None) => true,
        (Value::Int(a), Value::Int(b)) => *a == b,
        (Value::Float(a), Value::Float(b)) => *a == b,
        (Value::Bool(a), Value::Bool(b)) => *a == b,
        (Value::Str(a), Value::Str(b)) => *a == b,
        (Value::Tensor(a), Value::Tensor(b)) => {
            let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 1e-6 * y.abs().max(1.0);
            let same = a.shape() == b.shape() && a.dtype() == b.dtype();
            same && (elements(a).iter().zip(&numbers(wanted.list("data")))).all(close)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(wanted.list("array")).all(|(x, y)| is(x, y))
        }
        _ => false,
    }
}

fn texts(names: Vec<String>) -> Value {
    Value::Array(names.into_iter().map(Value::Str).collect())
}

impl Runner {
    fn module(&self, name: &str) -> Result<&Module> {
        match &self.things[name] {
            Thing::Module(module, _) => Ok(module),
            _ => Err(Error::new("ValueError", "the module is closed")),
        }
    }

    fn model(&self, name: &str) -> &Model {
        match &self.things[name] {
            Thing::Module(_, Some(model)) => model,
            _ => panic!("{name} is no model"),
        }
    }

    fn object(&mut self, name: &str) -> &mut Object {
        match self.things.get_mut(name) {
            Some(Thing::Object(object)) => object,
            _ => panic!("{name} is no object"),
        }
    }

    fn open(&mut self, step: &Json) -> Result<Value> {
        let path = self.folder.join(step.text("path"));
        let module = Module::load(&path)?;
        let model = path.extension().is_some_and(|e| e == "eki").then(|| Model::load(&path));
        let thing = Thing::Module(module, model.transpose()?);
        self.things.insert(step.text("as").to_string(), thing);
        Ok(Value::None)
    }

    fn define(&self, step: &Json) -> Result<Value> {
        let fields: Vec<(String, FieldKind)> = (step.list("fields").iter())
            .map(|row| match row {
                Json::List(pair) => match (&pair[0], &pair[1]) {
                    (Json::Text(name), Json::Text(kind)) => (name.clone(), field_kind(kind)),
                    _ => panic!("a field has a name and a kind"),
                },
                _ => panic!("a field has a name and a kind"),
            })
            .collect();
        let rows: Vec<(&str, FieldKind)> = fields.iter().map(|(n, k)| (n.as_str(), *k)).collect();
        define(step.text("type"), &rows)?;
        Ok(Value::None)
    }

    /// Calls `then` with the step's inputs by name.
    fn with_inputs<R>(&self, step: &Json, then: impl FnOnce(&[(&str, Input)]) -> R) -> R {
        let Some(Json::Map(given)) = step.get("inputs") else { panic!("inputs expected") };
        let tensors: Vec<(&str, Tensor)> =
            given.iter().map(|(name, each)| (name.as_str(), tensor(each))).collect();
        let inputs: Vec<(&str, Input)> =
            tensors.iter().map(|(name, each)| (*name, Input::Tensor(each))).collect();
        then(&inputs)
    }

    fn run_into(&self, step: &Json) -> Result<Value> {
        let outputs = step.list("outputs");
        let mut memory: Vec<Vec<f32>> = (outputs.iter())
            .map(|each| numbers(each.list("data")).iter().map(|&x| x as f32).collect())
            .collect();
        let mut lent: Vec<LentMut> = (memory.iter_mut().zip(outputs))
            .map(|(data, each)| lend_mut(data.as_mut_slice(), &shape_of(each)).unwrap())
            .collect();
        let model = self.model(step.text("of"));
        self.with_inputs(step, |inputs| model.run_into("main", inputs, &mut lent))?;
        let made = memory.iter().zip(outputs);
        let tensors = made.map(|(data, each)| Tensor::from_slice(data, &shape_of(each)));
        Ok(Value::Array(tensors.map(|each| each.map(Value::Tensor)).collect::<Result<_>>()?))
    }

    fn step(&mut self, step: &Json) -> Result<Value> {
        let of = step.get("of").map(|_| step.text("of").to_string()).unwrap_or_default();
        match step.text("op") {
            "open" => self.open(step),
            "functions" => self.module(&of)?.names().map(texts),
            "inputs" => self.model(&of).inputs("main").map(texts),
            "call" => {
                let function = self.module(&of)?.function(step.text("function"))?;
                function.call(&values(step.list("args")))
            }
            "run" => self.with_inputs(step, |inputs| self.model(&of).run("main", inputs)),
            "run_into" => self.run_into(step),
            "overwrite" => {
                let size = step.get("size").unwrap().number() as i64;
                let data: Vec<f32> = (0..size).map(|i| i as f32).collect();
                let x = Tensor::from_slice(&data, &[size])?;
                let function = self.module(&of)?.function("main")?;
                let run = || match function.call(&[x.clone().into()]) {
                    Ok(Value::Array(results)) => results.iter().map(all_elements).collect(),
                    other => panic!("results expected, got {other:?}"),
                };
                let first: Vec<Vec<f64>> = run(); // slices of results are never mutable
                Ok(Value::Bool(run() == first))
            }
            "kernels" => {
                let model = self.model(&of);
                let (_, times) = self.with_inputs(step, |inputs| model.profile("main", inputs))?;
                Ok(Value::Int(times.len() as i64))
            }
            "threads" => {
                let n = step.get("n").unwrap().number() as i64;
                self.model(&of).set_num_threads(n)?;
                self.model(&of).num_threads().map(Value::Int)
            }
            "device" => {
                let device = tensor(step.get("value").unwrap()).device();
                Ok(vec![Value::Int(device.kind.into()), Value::Int(device.id.into())].into())
            }
            "global" => registry::get(step.text("name"))?.call(&values(step.list("args"))),
            "register" => {
                registry::register(step.text("name"), &callback(step.text("callback"))?)?;
                Ok(Value::None)
            }
            "remove" => registry::remove(step.text("name")).map(Value::Bool),
            "define" => self.define(step),
            "new" => {
                let made = Object::new(step.text("type"), &values(step.list("values")))?;
                self.things.insert(step.text("as").to_string(), Thing::Object(made));
                Ok(Value::None)
            }
            "type" => Ok(Value::Str(self.object(&of).type_key())),
            "fields" => Ok(texts(self.object(&of).fields())),
            "get" => self.object(&of).get(step.text("field")),
            "set" => {
                let given = value(step.get("value").unwrap());
                self.object(&of).set(step.text("field"), &given)?;
                Ok(Value::None)
            }
            "equal" => {
                let other = self.object(step.text("b")).clone();
                self.object(step.text("a")).equals(&other).map(Value::Bool)
            }
            "close" => {
                self.things.insert(of, Thing::Closed);
                Ok(Value::None)
            }
            other => panic!("no step {other}"),
        }
    }
}

fn field_kind(name: &str) -> FieldKind {
    match name {
        "int" => FieldKind::Int,
        "bool" => FieldKind::Bool,
        "float" => FieldKind::Float,
        "any" => FieldKind::Any,
        other => panic!("no kind of field {other}"),
    }
}

fn judge(result: &Result<Value>, step: &Json) -> std::result::Result<(), String> {
    match (result, step.get("fails"), step.get("is")) {
        (Err(error), Some(fails), _) => {
            let fits =
                error.kind == fails.text("kind") && error.message.contains(fails.text("message"));
            fits.then_some(()).ok_or_else(|| format!("got {error}"))
        }
        (Ok(got), None, Some(wanted)) => {
            is(got, wanted).then_some(()).ok_or_else(|| format!("got {got:?}"))
        }
        (Ok(_), None, None) => Ok(()),
        (got, _, _) => Err(format!("got {got:?}")),
    }
}

#[test]
fn conforms() {
    let Ok(folder) = std::env::var("EKIDEN_CONFORMANCE") else {
        eprintln!("EKIDEN_CONFORMANCE names no folder: nothing was run");
        return;
    };
    let folder = PathBuf::from(folder);
    let script = json::parse(&std::fs::read_to_string(folder.join("conformance.json")).unwrap());
    let mut n = 0;
    for case in script.list("cases") {
        let mut runner = Runner { folder: folder.clone(), things: HashMap::new() };
        for step in case.list("steps") {
            for _ in 0..step.get("times").map_or(1, |times| times.number() as u64) {
                if let Err(why) = judge(&runner.step(step), step) {
                    panic!("{}: {step:?}: {why}", case.text("name"));
                }
            }
            n += 1;
        }
    }
    println!("{n} steps");
}

#[test]
fn a_panic_is_an_error() {
    let function = Function::new(|_| panic!("it broke")).unwrap();
    let error = function.call(&[]).unwrap_err();
    assert_eq!((error.kind.as_str(), error.message.as_str()), ("RuntimeError", "it broke"));
}

#[test]
fn elements_have_their_type_and_number() {
    let tensor = Tensor::from_slice(&[1i32, 2], &[2]).unwrap();
    let error = tensor.as_slice::<f32>().unwrap_err();
    assert_eq!(error.message, "read tensor: float32 expected, got int32");
    let error = Tensor::from_slice(&[1i32, 2], &[3]).unwrap_err();
    assert_eq!(error.message, "shape [3]: 3 elements expected, got 2");
    assert!(Tensor::from_slice(&[1u8], &[-1]).is_err());
    assert_eq!(DType { code: 4, bits: 16, lanes: 1 }.name(), "bfloat16");
    assert_eq!(<f64 as Element>::DTYPE.name(), "float64");
}

#[test]
fn calls_from_several_threads() {
    let function = Function::new(|args| Ok(args[0].clone())).unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let function = function.clone();
            scope.spawn(move || {
                for _ in 0..1000 {
                    assert!(matches!(function.call(&[Value::Int(n)]), Ok(Value::Int(m)) if m == n));
                }
            });
        }
    });
}
