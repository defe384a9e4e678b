//! ONNX Runtime's functions, whose statuses become errors.
//!
//! ONNX Runtime's table may have empty places, so it is used through a raw pointer, one function at
//! a time. Enumerators are read as integers: a newer ONNX Runtime may give others.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use distcollective::tensor::{MAX_DIMS, Shape};
use distcollective::{Error, ErrorKind, Result};
use ort_sys::{
    OrtApi, OrtApiBase, OrtCustomOp, OrtCustomOpDomain, OrtErrorCode, OrtKernelContext, OrtKernelInfo, OrtOpAttrType,
    OrtSessionOptions, OrtShapeInferContext, OrtStatus, OrtStatusPtr, OrtTensorTypeAndShapeInfo,
};

/// The version of the table: that of ONNX Runtime 1.17, in which operators return statuses and
/// infer shapes.
pub(crate) const VERSION: u32 = 17;

/// The oldest version of the table that every ONNX Runtime has.
const FIRST_VERSION: u32 = 1;

/// ONNX Runtime's functions. A process may have several ONNX Runtimes, each with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Api(*const OrtApi);

// SAFETY: the table is constant, and its functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// A domain of operators, which is never released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Domain(*mut OrtCustomOpDomain);

// SAFETY: nothing changes a domain after `new_domain`.
unsafe impl Send for Domain {}

/// The tensor that a node reads.
#[derive(Debug)]
pub(crate) struct Tensor {
    /// An `ONNXTensorElementDataType`.
    pub(crate) element_type: i32,
    pub(crate) shape: Shape,
    pub(crate) data: *const u8,
}

/// Calls a function of the table, and makes an error of its status. Unsafe: the arguments have to
/// be valid.
macro_rules! call {
    ($api:expr, $function:ident, $($argument:expr),* $(,)?) => {
        $api.check(stringify!($function), ((*$api.0).$function)($($argument),*))
    };
}

impl Api {
    /// The functions that ONNX Runtime hands over.
    ///
    /// # Safety
    ///
    /// The base is ONNX Runtime's.
    ///
    /// # Errors
    ///
    /// The status that says that this ONNX Runtime is too old.
    pub(crate) unsafe fn of(base: *const OrtApiBase) -> std::result::Result<Self, *mut OrtStatus> {
        // SAFETY: the caller's promise; the base and its tables live as long as the process.
        unsafe {
            let api = ((*base).GetApi)(VERSION);
            if !api.is_null() {
                return Ok(Api(api));
            }
            let version = CStr::from_ptr(((*base).GetVersionString)()).to_string_lossy();
            let text = format!("distcollective needs ONNX Runtime 1.17 or newer, and this is {version}");
            Err(Api(((*base).GetApi)(FIRST_VERSION)).status(&Error::new(ErrorKind::Unsupported, text)))
        }
    }

    /// A status that ONNX Runtime frees, and makes an exception of.
    pub(crate) fn status(self, error: &Error) -> *mut OrtStatus {
        let code = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::InvalidShape | ErrorKind::InvalidBuffer => {
                OrtErrorCode::ORT_INVALID_ARGUMENT
            }
            ErrorKind::Unsupported => OrtErrorCode::ORT_NOT_IMPLEMENTED,
            _ => OrtErrorCode::ORT_FAIL,
        };
        let text = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
        // SAFETY: the table has this function from version 1 on; it copies the text.
        unsafe { ((*self.0).CreateStatus)(code, text.as_ptr()) }.0
    }

    fn check(self, function: &str, status: OrtStatusPtr) -> Result<()> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: the status is one of ONNX Runtime's, whose text is copied before it is released.
        let text = unsafe {
            let text = CStr::from_ptr(((*self.0).GetErrorMessage)(status.0)).to_string_lossy().into_owned();
            ((*self.0).ReleaseStatus)(status.0);
            text
        };
        Err(Error::new(ErrorKind::System, format!("ONNX Runtime's {function} failed: {text}")))
    }

    /// A text whose length the function says when it is asked without room for it.
    fn text(self, read: impl Fn(*mut c_char, *mut usize) -> Result<()>) -> Result<String> {
        let mut len = 0;
        read(std::ptr::null_mut(), &mut len)?;
        let mut bytes = vec![0u8; len];
        read(bytes.as_mut_ptr().cast(), &mut len)?;
        let text = CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned());
        text.map_err(|_| Error::new(ErrorKind::System, "a text of ONNX Runtime has no end"))
    }

    /// A domain "" with an operator.
    ///
    /// # Safety
    ///
    /// The operator lives as long as the process, and its functions get this pointer.
    pub(crate) unsafe fn new_domain(self, op: *const OrtCustomOp) -> Result<Domain> {
        let mut domain = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        unsafe {
            call!(self, CreateCustomOpDomain, c"".as_ptr(), &mut domain)?;
            call!(self, CustomOpDomain_Add, domain, op)?;
        }
        Ok(Domain(domain))
    }

    /// Adds a domain to a session's operators.
    ///
    /// # Safety
    ///
    /// The options exist, and the domain is of the same ONNX Runtime.
    pub(crate) unsafe fn add_domain(self, options: *mut OrtSessionOptions, domain: Domain) -> Result<()> {
        // SAFETY: the caller's promise; the domain lives as long as the process.
        unsafe { call!(self, AddCustomOpDomain, options, domain.0) }
    }

    /// A session's config entry.
    ///
    /// # Safety
    ///
    /// The options exist.
    pub(crate) unsafe fn config_entry(self, options: *const OrtSessionOptions, key: &CStr) -> Result<Option<String>> {
        let mut exists: c_int = 0;
        // SAFETY: the caller's promise; writes one number.
        unsafe { call!(self, HasSessionConfigEntry, options, key.as_ptr(), &mut exists)? };
        let read = |to: *mut c_char, len: *mut usize| {
            // SAFETY: the caller's promise; `text` gives room for the length, or none.
            unsafe { call!(self, GetSessionConfigEntry, options, key.as_ptr(), to, len) }
        };
        (exists != 0).then(|| self.text(read)).transpose()
    }

    /// Sets a session's config entry.
    ///
    /// # Safety
    ///
    /// The options exist.
    pub(crate) unsafe fn set_config_entry(
        self,
        options: *mut OrtSessionOptions,
        key: &CStr,
        value: &CStr,
    ) -> Result<()> {
        // SAFETY: the caller's promise; the texts are copied.
        unsafe { call!(self, AddSessionConfigEntry, options, key.as_ptr(), value.as_ptr()) }
    }

    /// A node's name.
    ///
    /// # Safety
    ///
    /// The node exists; so for the functions below.
    pub(crate) unsafe fn node_name(self, info: *const OrtKernelInfo) -> Result<String> {
        // SAFETY: the caller's promise; `text` gives room for the length, or none.
        self.text(|to, len| unsafe { call!(self, KernelInfo_GetNodeName, info, to, len) })
    }

    pub(crate) unsafe fn text_attribute(self, info: *const OrtKernelInfo, name: &CStr) -> Result<String> {
        // SAFETY: as in `node_name`.
        self.text(|to, len| unsafe { call!(self, KernelInfoGetAttribute_string, info, name.as_ptr(), to, len) })
    }

    pub(crate) unsafe fn integer_attribute(self, info: *const OrtKernelInfo, name: &CStr) -> Result<i64> {
        let mut value = 0;
        // SAFETY: the caller's promise; writes one number.
        unsafe { call!(self, KernelInfoGetAttribute_int64, info, name.as_ptr(), &mut value)? };
        Ok(value)
    }

    pub(crate) unsafe fn float_attribute(self, info: *const OrtKernelInfo, name: &CStr) -> Result<f32> {
        let mut value = 0.0;
        // SAFETY: the caller's promise; writes one number.
        unsafe { call!(self, KernelInfoGetAttribute_float, info, name.as_ptr(), &mut value)? };
        Ok(value)
    }

    /// How many floats a list has. A list of another type has none.
    pub(crate) unsafe fn float_count(self, info: *const OrtKernelInfo, name: &CStr) -> Result<usize> {
        let mut len = 0;
        let (name, none) = (name.as_ptr(), std::ptr::null_mut());
        // SAFETY: as in `node_name`; writes the length only.
        unsafe { call!(self, KernelInfoGetAttributeArray_float, info, name, none, &mut len)? };
        Ok(len)
    }

    /// The integers of a list. An attribute of another type has none.
    pub(crate) unsafe fn integers_attribute(self, info: *const OrtKernelInfo, name: &CStr) -> Result<Vec<i64>> {
        let mut len = 0;
        let name = name.as_ptr();
        // SAFETY: the caller's promise; the first call writes the length, the second so many
        // numbers.
        unsafe {
            call!(self, KernelInfoGetAttributeArray_int64, info, name, std::ptr::null_mut(), &mut len)?;
            let mut values = vec![0; len];
            if len > 0 {
                call!(self, KernelInfoGetAttributeArray_int64, info, name, values.as_mut_ptr(), &mut len)?;
            }
            Ok(values)
        }
    }

    /// The node's input.
    ///
    /// # Safety
    ///
    /// The context is that of a run of the node.
    pub(crate) unsafe fn input(self, context: *const OrtKernelContext) -> Result<Tensor> {
        let mut value = std::ptr::null();
        let mut info = std::ptr::null_mut();
        // SAFETY: the caller's promise; each call writes one value.
        unsafe {
            call!(self, KernelContext_GetInput, context, 0, &mut value)?;
            if value.is_null() {
                return Err(Error::new(ErrorKind::InvalidArgument, "the node has no input"));
            }
            call!(self, GetTensorTypeAndShape, value, &mut info)?;
            let described = self.describe(info);
            ((*self.0).ReleaseTensorTypeAndShapeInfo)(info);
            let (element_type, shape) = described?;
            let mut data: *mut c_void = std::ptr::null_mut();
            call!(self, GetTensorMutableData, value.cast_mut(), &mut data)?;
            Ok(Tensor { element_type, shape, data: data.cast() })
        }
    }

    /// Reads an attribute, in shape inference. Returns its number of bytes; `None` if it is absent.
    ///
    /// # Safety
    ///
    /// The context is that of an inference that runs; so for the functions below.
    pub(crate) unsafe fn inferred_attribute(
        self,
        context: *const OrtShapeInferContext,
        name: &CStr,
        kind: OrtOpAttrType,
        room: &mut [i64],
    ) -> Result<Option<usize>> {
        let (mut attribute, mut len) = (std::ptr::null(), 0);
        // SAFETY: the caller's promise; the second call writes at most as many bytes as there are.
        unsafe {
            if call!(self, ShapeInferContext_GetAttribute, context, name.as_ptr(), &mut attribute).is_err() {
                return Ok(None);
            }
            call!(self, ReadOpAttr, attribute, kind, room.as_mut_ptr().cast(), size_of_val(room), &mut len)?;
        }
        Ok(Some(len))
    }

    /// The input's type, dimensions and their names. -1 is a dimension that is not known; it may
    /// have a name.
    pub(crate) unsafe fn inferred_input(
        self,
        context: *const OrtShapeInferContext,
    ) -> Result<(i32, Vec<i64>, Vec<CString>)> {
        let (mut info, mut element_type, mut dim_count) = (std::ptr::null_mut(), 0i32, 0);
        // SAFETY: the caller's promise; ONNX Runtime keeps the information, with the names. The
        // last two calls write as many values as the one before has said.
        unsafe {
            call!(self, ShapeInferContext_GetInputTypeShape, context, 0, &mut info)?;
            call!(self, GetTensorElementType, info, (&raw mut element_type).cast())?;
            call!(self, GetDimensionsCount, info, &mut dim_count)?;
            let (mut dims, mut names) = (vec![0; dim_count], vec![c"".as_ptr(); dim_count]);
            call!(self, GetDimensions, info, dims.as_mut_ptr(), dim_count)?;
            call!(self, GetSymbolicDimensions, info, names.as_mut_ptr(), dim_count)?;
            Ok((element_type, dims, names.into_iter().map(|name| CStr::from_ptr(name).to_owned()).collect()))
        }
    }

    /// Sets the output's type and dimensions. Each dimension that is -1 has a name.
    pub(crate) unsafe fn set_inferred_output(
        self,
        context: *const OrtShapeInferContext,
        element_type: i32,
        dims: &[i64],
        names: &[CString],
    ) -> Result<()> {
        let mut names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let mut info = std::ptr::null_mut();
        // SAFETY: as below.
        let mut fill = |info| unsafe {
            // The number may be no enumerator, so it is passed as an integer, which is as long.
            let set_type = (*self.0).SetTensorElementType as *const ();
            let set_type: unsafe extern "system" fn(*mut OrtTensorTypeAndShapeInfo, i32) -> OrtStatusPtr =
                std::mem::transmute(set_type);
            self.check("SetTensorElementType", set_type(info, element_type))?;
            call!(self, SetDimensions, info, dims.as_ptr(), dims.len())?;
            call!(self, SetSymbolicDimensions, info, names.as_mut_ptr(), names.len())?;
            call!(self, ShapeInferContext_SetOutputTypeShape, context, 0, info)
        };
        // SAFETY: the caller's promise; there are as many dimensions and names as the calls say,
        // which copy them.
        unsafe {
            call!(self, CreateTensorTypeAndShapeInfo, &mut info)?;
            let result = fill(info);
            ((*self.0).ReleaseTensorTypeAndShapeInfo)(info);
            result
        }
    }

    /// # Safety
    ///
    /// The information exists.
    unsafe fn describe(self, info: *const OrtTensorTypeAndShapeInfo) -> Result<(i32, Shape)> {
        let (mut element_type, mut dim_count, mut dims) = (0i32, 0, [0i64; MAX_DIMS]);
        // SAFETY: the caller's promise; an enumerator is as long as an `i32`; the last call writes
        // at most as many numbers as there is room for.
        unsafe {
            call!(self, GetTensorElementType, info, (&raw mut element_type).cast())?;
            call!(self, GetDimensionsCount, info, &mut dim_count)?;
            if dim_count > MAX_DIMS {
                let text = format!("the input has {dim_count} dimensions; the operator takes 1 to {MAX_DIMS}");
                return Err(Error::new(ErrorKind::InvalidShape, text));
            }
            call!(self, GetDimensions, info, dims.as_mut_ptr(), dim_count)?;
        }
        Ok((element_type, Shape::new(&dims.map(|dim| dim as usize)[..dim_count])?))
    }

    /// The memory of the node's output, for a tensor of this shape.
    ///
    /// # Safety
    ///
    /// The context is that of a run of the node.
    pub(crate) unsafe fn output(self, context: *mut OrtKernelContext, shape: &Shape) -> Result<*mut u8> {
        let (len, mut dims) = (shape.as_slice().len(), [0i64; MAX_DIMS]);
        for (to, dim) in dims.iter_mut().zip(shape.as_slice()) {
            *to = *dim as i64;
        }
        let (mut value, mut data) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the caller's promise; each call writes one value.
        unsafe {
            call!(self, KernelContext_GetOutput, context, 0, dims.as_ptr(), len, &mut value)?;
            if value.is_null() {
                return Err(Error::new(ErrorKind::InvalidArgument, "the node has no output"));
            }
            call!(self, GetTensorMutableData, value, &mut data)?;
        }
        Ok(data.cast())
    }
}
