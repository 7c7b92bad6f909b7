//! Tensors: of the runtime, and memory of the caller lent for one call.

use std::marker::PhantomData;
use std::ptr;
use std::slice;

use crate::error::{check, Error, Result};
use crate::object::Ref;
use crate::sys::{self, DType, Device};

/// A type that elements of tensors have.
///
/// # Safety
/// Every pattern of bits of an element of `DTYPE` must be a value of the type.
pub unsafe trait Element: Copy + 'static {
    const DTYPE: DType;
}

/// A bool as tensors have it: a byte, 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bool(pub u8);

macro_rules! elements {
    ($($type:ty: $code:literal, $bits:literal;)*) => {
        // SAFETY: every bit pattern is a valid number of this type.
        $(unsafe impl Element for $type {
            const DTYPE: DType = DType { code: $code, bits: $bits, lanes: 1 };
        })*
    };
}

elements! {
    i8: 0, 8; i16: 0, 16; i32: 0, 32; i64: 0, 64;
    u8: 1, 8; u16: 1, 16; u32: 1, 32; u64: 1, 64;
    f32: 2, 32; f64: 2, 64;
    Bool: 6, 8;
}

/// The host, where every program runs.
pub const CPU: Device = Device { kind: 1, id: 0 };

impl DType {
    /// NumPy's name, such as "float32".
    pub fn name(&self) -> String {
        let kind = match self.code {
            0 => "int",
            1 => "uint",
            2 => "float",
            4 => "bfloat",
            5 => "complex",
            6 => return "bool".to_string(),
            other => return format!("dtype{other}_{}", self.bits),
        };
        format!("{kind}{}", self.bits)
    }
}

/// A tensor of the runtime. Its elements do not change once it is made, so it may be shared.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) inner: Ref,
}

impl Tensor {
    /// A tensor with a copy of elements in row-major order.
    ///
    /// Errors: ValueError where `shape` has another number of elements, MemoryError.
    pub fn from_slice<T: Element>(data: &[T], shape: &[i64]) -> Result<Tensor> {
        let tensor = Tensor::zeroed(shape, T::DTYPE)?;
        expect_count(shape, data.len())?;
        // SAFETY: new, contiguous, and of as many elements.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), tensor.data() as *mut T, data.len()) };
        Ok(tensor)
    }

    /// A tensor of zeros. Errors: ValueError, MemoryError.
    pub fn zeroed(shape: &[i64], dtype: DType) -> Result<Tensor> {
        let mut out = ptr::null_mut();
        let ndim = shape.len() as i32;
        // SAFETY: a new tensor, whose bytes are ours alone.
        unsafe {
            check(sys::ek_tensor_new(shape.as_ptr(), ndim, dtype, CPU, &mut out))?;
            let tensor = Tensor { inner: Ref::take(out)? };
            ptr::write_bytes(tensor.data(), 0, tensor.nbytes());
            Ok(tensor)
        }
    }

    pub(crate) fn dl(&self) -> &sys::DlTensor {
        // SAFETY: every tensor object begins with this header.
        unsafe { &(*(self.inner.as_ptr() as *const sys::TensorObject)).dl }
    }

    fn data(&self) -> *mut u8 {
        let dl = self.dl();
        // SAFETY: within the tensor's memory.
        unsafe { (dl.data as *mut u8).add(dl.byte_offset as usize) }
    }

    fn nbytes(&self) -> usize {
        let dtype = self.dl().dtype;
        (self.len() * dtype.bits as usize * dtype.lanes as usize).div_ceil(8)
    }

    pub fn shape(&self) -> &[i64] {
        let dl = self.dl();
        if dl.ndim == 0 {
            return &[];
        }
        // SAFETY: the tensor has `ndim` of them, and they never change.
        unsafe { slice::from_raw_parts(dl.shape, dl.ndim as usize) }
    }

    pub fn dtype(&self) -> DType {
        self.dl().dtype
    }

    pub fn device(&self) -> Device {
        self.dl().device
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape().iter().product::<i64>() as usize
    }

    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    fn is_contiguous(&self) -> bool {
        let dl = self.dl();
        let mut expected = 1;
        self.is_empty()
            || self.shape().iter().enumerate().rev().all(|(axis, &extent)| {
                // SAFETY: strides are there wherever the shape is.
                let stride = unsafe { *dl.strides.add(axis) };
                let fits = extent == 1 || stride == expected;
                expected *= extent;
                fits
            })
    }

    /// Its elements, without a copy.
    ///
    /// Errors: TypeError where they are of another type or on another device, ValueError where they
    /// are not contiguous in row-major order (then `to_vec` copies them in that order).
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.expect::<T>()?;
        if !self.is_contiguous() {
            return Err(Error::new("ValueError", "read tensor: its elements do not lie together"));
        }
        if self.is_empty() {
            return Ok(&[]);
        }
        // SAFETY: contiguous, of that type, and nothing writes a tensor once it is made.
        Ok(unsafe { slice::from_raw_parts(self.data() as *const T, self.len()) })
    }

    /// A copy of its elements in row-major order. Errors: TypeError as `as_slice`.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect::<T>()?;
        if self.is_contiguous() {
            return self.as_slice::<T>().map(<[T]>::to_vec);
        }
        let whole = Tensor::zeroed(self.shape(), T::DTYPE)?;
        // SAFETY: of one shape and dtype, and the second is new.
        unsafe { check(sys::ek_tensor_copy(self.dl(), whole.dl())) }?;
        whole.as_slice::<T>().map(<[T]>::to_vec)
    }

    fn expect<T: Element>(&self) -> Result<()> {
        let (got, wanted) = (self.dtype(), T::DTYPE);
        if got != wanted {
            let message = format!("read tensor: {} expected, got {}", wanted.name(), got.name());
            return Err(Error::new("TypeError", message));
        }
        if self.device().kind != CPU.kind {
            return Err(Error::new("TypeError", "read tensor: it is on another device"));
        }
        Ok(())
    }
}

fn expect_count(shape: &[i64], got: usize) -> Result<()> {
    let wanted: i64 = shape.iter().product();
    if wanted >= 0 && wanted as usize == got {
        return Ok(());
    }
    let message = format!("shape {shape:?}: {wanted} elements expected, got {got}");
    Err(Error::new("ValueError", message))
}

/// Memory of the caller as a tensor that a call reads.
#[derive(Debug)]
pub struct Lent<'a> {
    dl: sys::DlTensor,
    shape: Vec<i64>,
    memory: PhantomData<&'a [u8]>,
}

/// Memory of the caller as a tensor that a call writes.
#[derive(Debug)]
pub struct LentMut<'a> {
    lent: Lent<'a>,
    memory: PhantomData<&'a mut [u8]>,
}

impl Lent<'_> {
    fn of(data: *mut u8, count: usize, dtype: DType, shape: &[i64]) -> Result<Self> {
        expect_count(shape, count)?;
        let mut shape = shape.to_vec();
        let dl = sys::DlTensor {
            data: data.cast(),
            device: CPU,
            ndim: shape.len() as i32,
            dtype,
            shape: shape.as_mut_ptr(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        Ok(Lent { dl, shape, memory: PhantomData })
    }

    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    pub(crate) fn dl(&self) -> &sys::DlTensor {
        &self.dl
    }
}

impl LentMut<'_> {
    pub fn shape(&self) -> &[i64] {
        &self.lent.shape
    }

    pub(crate) fn dl(&self) -> &sys::DlTensor {
        &self.lent.dl
    }
}

/// Elements that a call reads, without a copy. Errors: ValueError where `shape` has another number.
pub fn lend<'a, T: Element>(data: &'a [T], shape: &[i64]) -> Result<Lent<'a>> {
    Lent::of(data.as_ptr() as *mut u8, data.len(), T::DTYPE, shape)
}

/// Elements that a call writes. Errors: ValueError where `shape` has another number.
pub fn lend_mut<'a, T: Element>(data: &'a mut [T], shape: &[i64]) -> Result<LentMut<'a>> {
    let lent = Lent::of(data.as_mut_ptr() as *mut u8, data.len(), T::DTYPE, shape)?;
    Ok(LentMut { lent, memory: PhantomData })
}
