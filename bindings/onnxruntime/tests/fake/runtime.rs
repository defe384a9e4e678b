//! A fake ONNX Runtime: the functions that the operator uses, over sessions, nodes and tensors of
//! this file. It counts what has not been released, and can fail any call.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use distcollective_onnxruntime::{CONFIG_KEY, register_custom_ops};
use ort_sys::{
    ONNXTensorElementDataType, OrtApi, OrtApiBase, OrtCustomOp, OrtCustomOpDomain, OrtErrorCode, OrtKernelContext,
    OrtKernelInfo, OrtSessionOptions, OrtStatus, OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtValue,
};

thread_local! {
    /// How many statuses, and descriptions of tensors, this thread has not released.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// How many calls that give a status succeed before one fails.
    static SUCCEEDING: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The domains that this thread has made.
    static DOMAINS: RefCell<Vec<*const Domain>> = const { RefCell::new(Vec::new()) };
}

/// What this thread has not released.
pub fn live() -> isize {
    LIVE.get()
}

/// Lets the call after this many fail, on this thread.
pub fn fail_after(calls: usize) {
    SUCCEEDING.set(calls);
}

/// How many domains this thread has made.
pub fn domain_count() -> usize {
    DOMAINS.with_borrow(Vec::len)
}

struct Status {
    code: i32,
    message: CString,
}

struct Domain {
    name: CString,
    operators: RefCell<Vec<*const OrtCustomOp>>,
}

#[derive(Default)]
struct Options {
    entry: Option<String>,
    /// Whether wrong stored shapes are errors.
    is_strict: bool,
    domains: Vec<*const Domain>,
}

/// A node's attributes.
#[derive(Clone, Default)]
pub struct Node {
    pub name: &'static str,
    pub texts: Vec<(&'static str, &'static str)>,
    pub integers: Vec<(&'static str, i64)>,
    pub lists: Vec<(&'static str, Vec<i64>)>,
    pub floats: Vec<(&'static str, f32)>,
    pub float_lists: Vec<(&'static str, Vec<f32>)>,
}

impl Node {
    pub fn new(name: &'static str, operation: &'static str) -> Self {
        Node { name, texts: vec![("collective_operation", operation), ("reduce_op", "sum")], ..Node::default() }
    }

    fn has(&self, name: &CStr) -> bool {
        fn any<T>(attributes: &[(&str, T)], name: &CStr) -> bool {
            attributes.iter().any(|(other, _)| Ok(*other) == name.to_str())
        }
        any(&self.texts, name)
            || any(&self.integers, name)
            || any(&self.lists, name)
            || any(&self.floats, name)
            || any(&self.float_lists, name)
    }
}

/// A tensor.
pub struct Value {
    pub element_type: i32,
    pub dims: Vec<i64>,
    pub data: Vec<u8>,
}

impl Value {
    /// uint8, a vector.
    pub fn bytes(data: &[u8]) -> Self {
        let element_type = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 as i32;
        Value { element_type, dims: vec![data.len() as i64], data: data.to_vec() }
    }
}

/// A run of a node. The output's dimensions are written by the operator; its data has to be long
/// enough.
pub struct Context {
    pub input: Option<Value>,
    pub output: Option<Value>,
    /// Runs when the operator asks for the output.
    pub at_output: fn(),
}

impl Context {
    pub fn new(input: Value, output_bytes: usize) -> Self {
        let output = Value { element_type: 0, dims: vec![0; 8], data: vec![0xee; output_bytes] };
        Context { input: Some(input), output: Some(output), at_output: || () }
    }
}

/// A session of one node.
pub struct Session {
    operator: *const OrtCustomOp,
    kernel: *mut c_void,
}

// SAFETY: the operator's functions may be called from any thread.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Session {
    /// A session whose config entry has this value.
    pub fn new(runtime: &Runtime, value: Option<String>, node: &Node) -> Result<Self, String> {
        let mut options = Options { entry: value, ..Options::default() };
        // SAFETY: the options exist, and the functions are those of this file.
        result(unsafe { register_custom_ops((&raw mut options).cast(), &raw const runtime.base) })?;
        assert!(options.is_strict);
        // SAFETY: a domain lives as long as the process.
        let domain = unsafe { &*options.domains[0] };
        assert!(domain.name.is_empty());
        let operator = domain.operators.borrow()[0];
        let mut kernel = std::ptr::null_mut();
        let info = std::ptr::from_ref(node).cast();
        // SAFETY: the operator lives as long as the process, and the node during the call.
        let status = unsafe {
            let create = (*operator).CreateKernelV2.expect("a function");
            create(operator, (runtime.base.GetApi)((*operator).version), info, &mut kernel)
        };
        result(status.0).map(|()| Session { operator, kernel })
    }

    pub fn run(&self, context: &mut Context) -> Result<(), String> {
        // SAFETY: the kernel lives as long as the session, and the context during the call.
        let status = unsafe {
            let compute = (*self.operator).KernelComputeV2.expect("a function");
            compute(self.kernel, std::ptr::from_mut(context).cast())
        };
        result(status.0)
    }

    pub fn operator(&self) -> *const OrtCustomOp {
        self.operator
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: this is the kernel's last use.
        unsafe { (*self.operator).KernelDestroy.expect("a function")(self.kernel) };
    }
}

/// `code: message`, of a status, which it releases.
fn result(status: *mut OrtStatus) -> Result<(), String> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: `create_status` made it.
    let Status { code, message } = *unsafe { Box::from_raw(status.cast::<Status>()) };
    LIVE.set(LIVE.get() - 1);
    Err(format!("{code}: {}", message.to_string_lossy()))
}

/// An ONNX Runtime.
pub struct Runtime {
    base: OrtApiBase,
}

impl Runtime {
    /// One that has the version 17 of its functions.
    pub const CURRENT: Runtime = Runtime { base: OrtApiBase { GetApi: current, GetVersionString: version } };
    /// Another copy of it in the same process.
    pub const COPY: Runtime = Runtime { base: OrtApiBase { GetApi: copy, GetVersionString: version } };
    /// One that has only the version 1.
    pub const OLD: Runtime = Runtime { base: OrtApiBase { GetApi: old, GetVersionString: version } };
}

/// A table. The operator may not call the functions that it lacks: their addresses are null.
struct Table(MaybeUninit<OrtApi>);

impl Table {
    fn new() -> Self {
        let mut table = Table(MaybeUninit::zeroed());
        let api = table.0.as_mut_ptr();
        // SAFETY: each writes a place of the table.
        unsafe {
            (&raw mut (*api).CreateStatus).write(create_status);
            (&raw mut (*api).GetErrorMessage).write(message);
            (&raw mut (*api).ReleaseStatus).write(release_status);
            (&raw mut (*api).CreateCustomOpDomain).write(create_domain);
            (&raw mut (*api).CustomOpDomain_Add).write(add_to_domain);
            (&raw mut (*api).AddCustomOpDomain).write(add_domain);
            (&raw mut (*api).HasSessionConfigEntry).write(has_entry);
            (&raw mut (*api).GetSessionConfigEntry).write(entry);
            (&raw mut (*api).AddSessionConfigEntry).write(set_entry);
            (&raw mut (*api).KernelInfo_GetNodeName).write(node_name);
            (&raw mut (*api).KernelInfoGetAttribute_string).write(text);
            (&raw mut (*api).KernelInfoGetAttribute_int64).write(integer);
            (&raw mut (*api).KernelInfoGetAttribute_float).write(float);
            (&raw mut (*api).KernelInfoGetAttributeArray_int64).write(list);
            (&raw mut (*api).KernelInfoGetAttributeArray_float).write(float_list);
            (&raw mut (*api).KernelContext_GetInput).write(input);
            (&raw mut (*api).KernelContext_GetOutput).write(output);
            (&raw mut (*api).GetTensorTypeAndShape).write(type_and_shape);
            (&raw mut (*api).ReleaseTensorTypeAndShapeInfo).write(release_type_and_shape);
            (&raw mut (*api).GetTensorElementType).write(element_type);
            (&raw mut (*api).GetDimensionsCount).write(dim_count);
            (&raw mut (*api).GetDimensions).write(dims);
            (&raw mut (*api).GetTensorMutableData).write(data);
        }
        table
    }
}

static CURRENT: LazyLock<Table> = LazyLock::new(Table::new);
static COPY: LazyLock<Table> = LazyLock::new(Table::new);

/// The table of [`Runtime::OLD`]: every ONNX Runtime has this function.
static OLD: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table(MaybeUninit::zeroed());
    // SAFETY: writes a place of the table.
    unsafe { (&raw mut (*table.0.as_mut_ptr()).CreateStatus).write(create_status) };
    table
});

fn of_version(table: &Table, version: u32, newest: u32) -> *const OrtApi {
    if (1..=newest).contains(&version) { table.0.as_ptr() } else { std::ptr::null() }
}

unsafe extern "system" fn current(version: u32) -> *const OrtApi {
    of_version(&CURRENT, version, 17)
}

unsafe extern "system" fn copy(version: u32) -> *const OrtApi {
    of_version(&COPY, version, 17)
}

unsafe extern "system" fn old(version: u32) -> *const OrtApi {
    of_version(&OLD, version, 16)
}

unsafe extern "system" fn version() -> *const c_char {
    c"1.16.3".as_ptr()
}

unsafe extern "system" fn create_status(code: OrtErrorCode, message: *const c_char) -> OrtStatusPtr {
    LIVE.set(LIVE.get() + 1);
    // SAFETY: ONNX Runtime's contract: the message is text; so for the functions below.
    let message = unsafe { CStr::from_ptr(message) }.to_owned();
    OrtStatusPtr(Box::into_raw(Box::new(Status { code: code as i32, message })).cast())
}

/// A status of this runtime.
fn failure(message: &CStr) -> OrtStatusPtr {
    // SAFETY: the message is text.
    unsafe { create_status(OrtErrorCode::ORT_RUNTIME_EXCEPTION, message.as_ptr()) }
}

/// Success, or what [`fail_after`] asks for, in place of the call.
fn status(call: impl FnOnce()) -> OrtStatusPtr {
    match SUCCEEDING.get() {
        0 => {
            SUCCEEDING.set(usize::MAX);
            failure(c"out of luck")
        }
        left => {
            SUCCEEDING.set(if left == usize::MAX { left } else { left - 1 });
            call();
            OrtStatusPtr(std::ptr::null_mut())
        }
    }
}

unsafe extern "system" fn message(status: *const OrtStatus) -> *const c_char {
    // SAFETY: `create_status` made it.
    unsafe { (*status.cast::<Status>()).message.as_ptr() }
}

unsafe extern "system" fn release_status(status: *mut OrtStatus) {
    let _ = result(status);
}

unsafe extern "system" fn create_domain(name: *const c_char, out: *mut *mut OrtCustomOpDomain) -> OrtStatusPtr {
    status(|| {
        // SAFETY: the contract.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        let domain = Box::into_raw(Box::new(Domain { name, operators: RefCell::default() }));
        DOMAINS.with_borrow_mut(|domains| domains.push(domain));
        // SAFETY: the contract: there is room.
        unsafe { *out = domain.cast() };
    })
}

unsafe extern "system" fn add_to_domain(domain: *mut OrtCustomOpDomain, operator: *const OrtCustomOp) -> OrtStatusPtr {
    // SAFETY: `create_domain` made it.
    status(|| unsafe { (*domain.cast::<Domain>()).operators.borrow_mut().push(operator) })
}

unsafe extern "system" fn add_domain(options: *mut OrtSessionOptions, domain: *mut OrtCustomOpDomain) -> OrtStatusPtr {
    // SAFETY: the options are those of `Session::new`.
    status(|| unsafe { (*options.cast::<Options>()).domains.push(domain.cast()) })
}

unsafe extern "system" fn has_entry(
    options: *const OrtSessionOptions,
    key: *const c_char,
    out: *mut c_int,
) -> OrtStatusPtr {
    status(|| {
        // SAFETY: the contract.
        unsafe {
            let options = &*options.cast::<Options>();
            let has = match CStr::from_ptr(key) {
                key if key == STRICT => options.is_strict,
                key => key.to_str() == Ok(CONFIG_KEY) && options.entry.is_some(),
            };
            *out = has.into();
        }
    })
}

const STRICT: &CStr = c"session.strict_shape_type_inference";

unsafe extern "system" fn set_entry(
    options: *mut OrtSessionOptions,
    key: *const c_char,
    value: *const c_char,
) -> OrtStatusPtr {
    // SAFETY: the contract.
    status(|| unsafe {
        assert_eq!([key, value].map(|text| CStr::from_ptr(text)), [STRICT, c"1"]);
        (*options.cast::<Options>()).is_strict = true;
    })
}

/// Copies text as ONNX Runtime does.
///
/// # Safety
///
/// There is room for `*size` bytes, or `out` is null.
unsafe fn copy_text(text: &str, out: *mut c_char, size: *mut usize) -> OrtStatusPtr {
    // SAFETY: the caller's promise.
    unsafe {
        if !out.is_null() && *size <= text.len() {
            return failure(c"the buffer is too small");
        }
        status(|| {
            *size = text.len() + 1;
            if !out.is_null() {
                out.cast::<u8>().copy_from(text.as_ptr(), text.len());
                *out.add(text.len()) = 0;
            }
        })
    }
}

unsafe extern "system" fn entry(
    options: *const OrtSessionOptions,
    _key: *const c_char,
    out: *mut c_char,
    size: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the contract.
    unsafe {
        let options = &*options.cast::<Options>();
        copy_text(options.entry.as_deref().expect("an entry"), out, size)
    }
}

unsafe extern "system" fn node_name(info: *const OrtKernelInfo, out: *mut c_char, size: *mut usize) -> OrtStatusPtr {
    // SAFETY: the contract.
    unsafe { copy_text((*info.cast::<Node>()).name, out, size) }
}

/// The value of an attribute.
///
/// # Safety
///
/// The name is text.
unsafe fn find<'a, T>(attributes: &'a [(&str, T)], name: *const c_char) -> Result<&'a T, OrtStatusPtr> {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    let found = attributes.iter().find(|(other, _)| Ok(*other) == name);
    found.map(|(_, value)| value).ok_or_else(|| failure(c"there is no such attribute"))
}

unsafe extern "system" fn text(
    info: *const OrtKernelInfo,
    name: *const c_char,
    out: *mut c_char,
    size: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the contract.
    unsafe {
        match find(&(*info.cast::<Node>()).texts, name) {
            Ok(text) => copy_text(text, out, size),
            Err(status) => status,
        }
    }
}

unsafe extern "system" fn integer(info: *const OrtKernelInfo, name: *const c_char, out: *mut i64) -> OrtStatusPtr {
    // SAFETY: the contract.
    unsafe {
        match find(&(*info.cast::<Node>()).integers, name) {
            Ok(integer) => status(|| *out = *integer),
            Err(status) => status,
        }
    }
}

unsafe extern "system" fn float(info: *const OrtKernelInfo, name: *const c_char, out: *mut f32) -> OrtStatusPtr {
    // SAFETY: the contract.
    unsafe {
        match find(&(*info.cast::<Node>()).floats, name) {
            Ok(float) => status(|| *out = *float),
            Err(status) => status,
        }
    }
}

/// Copies a list as ONNX Runtime does. It is empty if the attribute is of another type.
///
/// # Safety
///
/// The node exists, and the name is text. There is room for `*size` numbers, or `out` is null.
unsafe fn copy_list<T: Copy>(
    node: &Node,
    lists: &[(&str, Vec<T>)],
    name: *const c_char,
    out: *mut T,
    size: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise.
    unsafe {
        let name = CStr::from_ptr(name);
        if !node.has(name) {
            return failure(c"there is no such attribute");
        }
        let list = lists.iter().find(|(other, _)| Ok(*other) == name.to_str()).map_or(&[][..], |(_, list)| list);
        if !out.is_null() && *size < list.len() {
            return failure(c"the buffer is too small");
        }
        status(|| {
            *size = list.len();
            if !out.is_null() {
                out.copy_from(list.as_ptr(), list.len());
            }
        })
    }
}

unsafe extern "system" fn list(
    info: *const OrtKernelInfo,
    name: *const c_char,
    out: *mut i64,
    size: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the contract.
    unsafe {
        let node = &*info.cast::<Node>();
        copy_list(node, &node.lists, name, out, size)
    }
}

unsafe extern "system" fn float_list(
    info: *const OrtKernelInfo,
    name: *const c_char,
    out: *mut f32,
    size: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the contract.
    unsafe {
        let node = &*info.cast::<Node>();
        copy_list(node, &node.float_lists, name, out, size)
    }
}

unsafe extern "system" fn input(
    context: *const OrtKernelContext,
    index: usize,
    out: *mut *const OrtValue,
) -> OrtStatusPtr {
    assert_eq!(index, 0);
    status(|| {
        // SAFETY: the context is that of `Session::run`.
        unsafe {
            let value = (*context.cast::<Context>()).input.as_ref();
            *out = value.map_or(std::ptr::null(), |value| std::ptr::from_ref(value).cast());
        }
    })
}

unsafe extern "system" fn output(
    context: *mut OrtKernelContext,
    index: usize,
    dims: *const i64,
    dim_count: usize,
    out: *mut *mut OrtValue,
) -> OrtStatusPtr {
    assert_eq!(index, 0);
    // SAFETY: the context is that of `Session::run`, and there are so many dimensions.
    let (context, dims) = unsafe { (&mut *context.cast::<Context>(), std::slice::from_raw_parts(dims, dim_count)) };
    (context.at_output)();
    status(|| {
        let value = context.output.as_mut().map(|value| {
            value.dims.clear();
            value.dims.extend_from_slice(dims);
            std::ptr::from_mut(value).cast()
        });
        // SAFETY: the contract.
        unsafe { *out = value.unwrap_or(std::ptr::null_mut()) };
    })
}

/// A tensor describes itself.
unsafe extern "system" fn type_and_shape(
    value: *const OrtValue,
    out: *mut *mut OrtTensorTypeAndShapeInfo,
) -> OrtStatusPtr {
    status(|| {
        LIVE.set(LIVE.get() + 1);
        // SAFETY: the contract.
        unsafe { *out = value.cast_mut().cast() };
    })
}

unsafe extern "system" fn release_type_and_shape(_info: *mut OrtTensorTypeAndShapeInfo) {
    LIVE.set(LIVE.get() - 1);
}

unsafe extern "system" fn element_type(
    info: *const OrtTensorTypeAndShapeInfo,
    out: *mut ONNXTensorElementDataType,
) -> OrtStatusPtr {
    // SAFETY: the contract. The number may be no enumerator, so it is written as an integer.
    status(|| unsafe { *out.cast::<i32>() = (*info.cast::<Value>()).element_type })
}

unsafe extern "system" fn dim_count(info: *const OrtTensorTypeAndShapeInfo, out: *mut usize) -> OrtStatusPtr {
    // SAFETY: the contract.
    status(|| unsafe { *out = (*info.cast::<Value>()).dims.len() })
}

unsafe extern "system" fn dims(
    info: *const OrtTensorTypeAndShapeInfo,
    out: *mut i64,
    dim_count: usize,
) -> OrtStatusPtr {
    // SAFETY: the contract: there is room for so many.
    status(|| unsafe {
        let dims = &(*info.cast::<Value>()).dims;
        out.copy_from(dims.as_ptr(), dim_count.min(dims.len()));
    })
}

unsafe extern "system" fn data(value: *mut OrtValue, out: *mut *mut c_void) -> OrtStatusPtr {
    // SAFETY: the contract.
    status(|| unsafe { *out = (*value.cast::<Value>()).data.as_mut_ptr().cast() })
}
