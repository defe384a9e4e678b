//! The operator, and how ONNX Runtime gets it.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use distcollective::{Error, ErrorKind, Result};
use ort_sys::{
    ONNXTensorElementDataType, OrtApi, OrtApiBase, OrtCustomOp, OrtCustomOpInputOutputCharacteristic, OrtKernelContext,
    OrtKernelInfo, OrtMemType, OrtSessionOptions, OrtShapeInferContext, OrtStatus, OrtStatusPtr,
};

use crate::api::{Api, Domain, VERSION};
use crate::kernel::Kernel;
use crate::node::Node;
use crate::session::{CONFIG_KEY_TEXT, communicator_now, communicator_of};
use crate::shapes;

/// The operator of sessions with one communicator. ONNX Runtime hands a pointer to the first field
/// to each function.
#[repr(C)]
struct Operator {
    functions: OrtCustomOp,
    api: Api,
    /// The value of the session config entry.
    session_value: Option<String>,
    /// Locked while one of its nodes runs.
    running: Mutex<()>,
}

// SAFETY: the functions may be called from any thread.
unsafe impl Send for Operator {}
// SAFETY: as above.
unsafe impl Sync for Operator {}

/// The domains that were made, each with one operator, by the value of the session config entry.
/// ONNX Runtime uses them as long as there is a session of theirs, and does not say when that ends,
/// so they are never freed.
static DOMAINS: Mutex<BTreeMap<(Api, Option<String>), Domain>> = Mutex::new(BTreeMap::new());

/// The session config entry that makes a stored shape that contradicts an inferred one an error of
/// the session. Without it ONNX Runtime logs a warning, and may use the stored one.
const STRICT_SHAPES: &CStr = c"session.strict_shape_type_inference";

/// Adds the operator `DistCollective` to a session's operators, and lets the session refuse wrong
/// stored shapes, unless it says otherwise. ONNX Runtime calls it for
/// `register_custom_ops_library`.
///
/// # Safety
///
/// ONNX Runtime calls it, with its functions and with options that exist.
#[unsafe(export_name = "RegisterCustomOps")]
pub unsafe extern "C" fn register_custom_ops(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> *mut OrtStatus {
    // SAFETY: the caller's promise.
    let api = match unsafe { Api::of(base) } {
        Ok(api) => api,
        Err(status) => return status,
    };
    status_of(api, || {
        // SAFETY: the caller's promise.
        unsafe {
            if api.config_entry(options, STRICT_SHAPES)?.is_none() {
                api.set_config_entry(options, STRICT_SHAPES, c"1")?;
            }
            let session_value = api.config_entry(options, CONFIG_KEY_TEXT)?;
            api.add_domain(options, domain_of(api, session_value)?)
        }
    })
}

/// The domain of sessions with this config entry, which is made once.
fn domain_of(api: Api, session_value: Option<String>) -> Result<Domain> {
    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (api, session_value);
    if let Some(domain) = domains.get(&key) {
        return Ok(*domain);
    }
    // The functions get the pointer to the whole operator.
    let operator = std::ptr::from_ref(operator(api, key.1.clone())).cast();
    // SAFETY: the operator is never freed.
    let domain = unsafe { api.new_domain(operator)? };
    domains.insert(key, domain);
    Ok(domain)
}

fn operator(api: Api, session_value: Option<String>) -> &'static Operator {
    let functions = OrtCustomOp {
        version: VERSION,
        CreateKernel: None,
        GetName: Some(name),
        GetExecutionProviderType: Some(execution_provider),
        GetInputType: Some(tensor_type),
        GetInputTypeCount: Some(tensor_count),
        GetOutputType: Some(tensor_type),
        GetOutputTypeCount: Some(tensor_count),
        KernelCompute: None,
        KernelDestroy: Some(destroy_kernel),
        GetInputCharacteristic: Some(characteristic),
        GetOutputCharacteristic: Some(characteristic),
        GetInputMemoryType: Some(memory_type),
        GetVariadicInputMinArity: None,
        GetVariadicInputHomogeneity: None,
        GetVariadicOutputMinArity: None,
        GetVariadicOutputHomogeneity: None,
        CreateKernelV2: Some(create_kernel),
        KernelComputeV2: Some(compute),
        InferOutputShapeFn: Some(infer_shape),
        GetStartVersion: None,
        GetEndVersion: None,
    };
    Box::leak(Box::new(Operator { functions, api, session_value, running: Mutex::new(()) }))
}

/// Runs code for ONNX Runtime, to which no panic may go.
fn status_of(api: Api, code: impl FnOnce() -> Result<()>) -> *mut OrtStatus {
    let result = catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| Err(of_panic(panic.as_ref())));
    result.map_or_else(|error| api.status(&error), |()| std::ptr::null_mut())
}

fn of_panic(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Error::new(ErrorKind::System, format!("the operator panicked: {text}"))
}

unsafe extern "system" fn name(_op: *const OrtCustomOp) -> *const c_char {
    c"DistCollective".as_ptr()
}

/// Null is the CPU.
unsafe extern "system" fn execution_provider(_op: *const OrtCustomOp) -> *const c_char {
    std::ptr::null()
}

/// Of any type; the output's is that of the input.
unsafe extern "system" fn tensor_type(_op: *const OrtCustomOp, _index: usize) -> ONNXTensorElementDataType {
    ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED
}

unsafe extern "system" fn tensor_count(_op: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn characteristic(
    _op: *const OrtCustomOp,
    _index: usize,
) -> OrtCustomOpInputOutputCharacteristic {
    OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn memory_type(_op: *const OrtCustomOp, _index: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn create_kernel(
    op: *const OrtCustomOp,
    _api: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: `operator` made the operator, which is never freed.
    let Operator { api, session_value, running, .. } = unsafe { &*op.cast::<Operator>() };
    OrtStatusPtr(status_of(*api, || {
        let communicator = communicator_of(session_value.as_deref())?;
        // SAFETY: ONNX Runtime gives the node's information, which exists during the call.
        let node = unsafe { Node::new(*api, info) };
        let new = Kernel::new(*api, &node, communicator, running)?;
        // SAFETY: ONNX Runtime gives a place for a pointer.
        unsafe { *kernel = Box::into_raw(Box::new(new)).cast() };
        Ok(())
    }))
}

unsafe extern "system" fn infer_shape(op: *const OrtCustomOp, context: *mut OrtShapeInferContext) -> OrtStatusPtr {
    // SAFETY: `operator` made the operator, which is never freed.
    let Operator { api, session_value, .. } = unsafe { &*op.cast::<Operator>() };
    let infer = || {
        let world_size = communicator_now(session_value.as_deref()).map_or(0, |communicator| communicator.world_size());
        // SAFETY: ONNX Runtime gives the context of this inference.
        unsafe { shapes::infer(*api, context, world_size) }
    };
    // ONNX Runtime does not look at a status of this function, nor release it.
    let _ = catch_unwind(AssertUnwindSafe(infer));
    OrtStatusPtr(std::ptr::null_mut())
}

unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut OrtKernelContext) -> OrtStatusPtr {
    // SAFETY: `create_kernel` made the kernel, and ONNX Runtime destroys it after its last run.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    // SAFETY: the context is that of this run.
    OrtStatusPtr(status_of(kernel.api(), || unsafe { kernel.compute(context) }))
}

unsafe extern "system" fn destroy_kernel(kernel: *mut c_void) {
    // SAFETY: `create_kernel` made the kernel, and this is its last use. No panic goes to ONNX
    // Runtime.
    let _ = catch_unwind(|| drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) }));
}
