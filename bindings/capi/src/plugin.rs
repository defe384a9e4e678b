//! Plugins: `dcl_plugin_t` as a [`Plugin`], and their creators.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dcl::network::{Plugin, PluginCall, PluginRegistry};
use dcl::tensor::Shape;
use dcl::{DataType, Error, ErrorKind};

use super::arguments::{CDims, InPointer, OutPointer, SizedStruct, TextPointer, data_type};
use super::status::{CallError, Result, Status, call, failure_count, last_message, last_status};

/// `DCL_MAX_PLUGIN_TENSORS`.
const MAX_TENSORS: usize = 16;

/// `dcl_plugin_tensor_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CPluginTensor {
    address: *mut c_void,
    byte_len: usize,
    data_type: i32,
    dims: CDims,
}

impl CPluginTensor {
    const NONE: Self = CPluginTensor { address: std::ptr::null_mut(), byte_len: 0, data_type: 0, dims: CDims::ABSENT };

    fn new(address: *mut u8, data_type: DataType, shape: Option<Shape>) -> Self {
        let shape = shape.unwrap_or_default();
        CPluginTensor {
            address: address.cast(),
            byte_len: shape.byte_len(data_type),
            data_type: data_type.number(),
            dims: shape.into(),
        }
    }
}

type OutputDataTypes = extern "C" fn(*mut c_void, *const i32, i32, *mut i32, i32) -> Status;
type OutputShapes = extern "C" fn(*mut c_void, *const CDims, i32, *mut CDims, i32) -> Status;
type Tensors = *const *const CPluginTensor;
type Enqueue = extern "C" fn(*mut c_void, Tensors, i32, Tensors, i32, *mut c_void) -> Status;
type Serialize = extern "C" fn(*mut c_void, *mut c_void, usize, *mut usize) -> Status;
type Destroy = extern "C" fn(*mut c_void);
type Create = extern "C" fn(*mut c_void, *const c_void, usize, *mut CPlugin) -> Status;

/// `dcl_plugin_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CPlugin {
    struct_size: usize,
    type_name: TextPointer,
    version: TextPointer,
    user_data: *mut c_void,
    nb_outputs: i32,
    runs_on_cuda: i32,
    get_output_data_types: Option<OutputDataTypes>,
    get_output_shapes: Option<OutputShapes>,
    enqueue: Option<Enqueue>,
    serialize: Option<Serialize>,
    destroy: Option<Destroy>,
}

const _: () = assert!(size_of::<CPlugin>() == CPlugin::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers and pointers; the size comes first. A callback may be NULL.
unsafe impl SizedStruct for CPlugin {
    const FIRST_BYTE_LEN: usize = 80;
    const INITIAL: Self = CPlugin {
        struct_size: size_of::<Self>(),
        type_name: TextPointer::NULL,
        version: TextPointer::NULL,
        user_data: std::ptr::null_mut(),
        nb_outputs: 1,
        runs_on_cuda: 0,
        get_output_data_types: None,
        get_output_shapes: None,
        enqueue: None,
        serialize: None,
        destroy: None,
    };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_plugin_init(plugin: OutPointer<CPlugin>, struct_size: usize) -> Status {
    call(|| plugin.initialize("plugin", struct_size))
}

/// `dcl_plugin_creator_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CPluginCreator {
    struct_size: usize,
    type_name: TextPointer,
    version: TextPointer,
    user_data: *mut c_void,
    create: Option<Create>,
}

/// A plugin that C's callbacks implement.
pub(super) struct CallbackPlugin {
    type_name: String,
    version: String,
    user_data: *mut c_void,
    nb_outputs: usize,
    runs_on_cuda: bool,
    get_output_data_types: OutputDataTypes,
    get_output_shapes: OutputShapes,
    enqueue: Enqueue,
    serialize: Option<Serialize>,
    destroy: Option<Destroy>,
    ownership: Ownership,
}

// SAFETY: the header requires callbacks and `user_data` that any thread may use.
unsafe impl Send for CallbackPlugin {}
// SAFETY: the header requires that several threads may use them at once.
unsafe impl Sync for CallbackPlugin {}

/// Whether the library owns a plugin, and so destroys it.
#[derive(Clone, Default)]
pub(super) struct Ownership(Arc<AtomicBool>);

impl Ownership {
    pub(super) fn take(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn required<T>(callback: Option<T>, name: &str) -> Result<T> {
    callback.ok_or_else(|| CallError::invalid_argument(format!("{name} of plugin is NULL")))
}

fn version(version: &TextPointer) -> Result<&str> {
    Ok(version.optional("version")?.unwrap_or("1"))
}

impl CallbackPlugin {
    /// Reads the structure. The caller owns the plugin until [`Ownership::take`].
    pub(super) fn new(plugin: CPlugin) -> Result<Self> {
        let nb_outputs = usize::try_from(plugin.nb_outputs).unwrap_or(0);
        if !(1..=MAX_TENSORS).contains(&nb_outputs) {
            let message = format!("nb_outputs of plugin is {}; it is 1 to {MAX_TENSORS}", plugin.nb_outputs);
            return Err(CallError::invalid_argument(message));
        }
        Ok(CallbackPlugin {
            type_name: plugin.type_name.get("type_name of plugin")?.to_owned(),
            version: version(&plugin.version)?.to_owned(),
            user_data: plugin.user_data,
            nb_outputs,
            runs_on_cuda: plugin.runs_on_cuda != 0,
            get_output_data_types: required(plugin.get_output_data_types, "get_output_data_types")?,
            get_output_shapes: required(plugin.get_output_shapes, "get_output_shapes")?,
            enqueue: required(plugin.enqueue, "enqueue")?,
            serialize: plugin.serialize,
            destroy: plugin.destroy,
            ownership: Ownership::default(),
        })
    }

    pub(super) fn ownership(&self) -> Ownership {
        self.ownership.clone()
    }

    /// The number of inputs as C's number. Callbacks rely on the header's maximum.
    fn input_count(&self, inputs: usize) -> dcl::Result<i32> {
        match inputs > MAX_TENSORS {
            true => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{inputs} inputs; a plugin through the C ABI has at most {MAX_TENSORS}"),
            )),
            false => Ok(inputs as i32),
        }
    }
}

/// Calls a callback. The error has its status. If a call of this library inside the callback failed
/// with the same status, the error has that call's message too.
fn call_back(what: &str, callback: impl FnOnce() -> Status) -> dcl::Result<()> {
    let before = failure_count();
    let status = callback();
    if status == Status::SUCCESS {
        return Ok(());
    }
    let mut why = String::new();
    if failure_count() != before && last_status() == Some(status) {
        last_message(|message| why = format!(": {}", String::from_utf8_lossy(message)));
    }
    // The communicator goes on after this one.
    let kind = if status == Status::RUN_REFUSED { ErrorKind::RunRefused } else { ErrorKind::Plugin };
    Err(Error::new(kind, format!("the plugin's {what} returned {status}{why}")))
}

/// Parses what a callback wrote for its outputs.
fn written<T, U>(what: &str, outputs: Vec<T>, parse: impl Fn(T) -> Result<U>) -> dcl::Result<Vec<U>> {
    let one = |(index, output)| {
        parse(output).map_err(|error| {
            Error::new(ErrorKind::Plugin, format!("the plugin's {what} wrote for output {index}: {error}"))
        })
    };
    outputs.into_iter().enumerate().map(one).collect()
}

impl Plugin for CallbackPlugin {
    fn type_name(&self) -> &str {
        &self.type_name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn output_types(&self, inputs: &[DataType]) -> dcl::Result<Vec<DataType>> {
        let (nb_inputs, nb_outputs) = (self.input_count(inputs.len())?, self.nb_outputs as i32);
        let inputs: Vec<i32> = inputs.iter().map(|input| input.number()).collect();
        let mut outputs = vec![-1; self.nb_outputs];
        let what = "get_output_data_types";
        call_back(what, || {
            (self.get_output_data_types)(self.user_data, inputs.as_ptr(), nb_inputs, outputs.as_mut_ptr(), nb_outputs)
        })?;
        written(what, outputs, data_type)
    }

    fn output_shapes(&self, inputs: &[Shape]) -> dcl::Result<Vec<Shape>> {
        let (nb_inputs, nb_outputs) = (self.input_count(inputs.len())?, self.nb_outputs as i32);
        let inputs: Vec<CDims> = inputs.iter().map(|input| (*input).into()).collect();
        let mut outputs = vec![CDims::ABSENT; self.nb_outputs];
        let what = "get_output_shapes";
        call_back(what, || {
            (self.get_output_shapes)(self.user_data, inputs.as_ptr(), nb_inputs, outputs.as_mut_ptr(), nb_outputs)
        })?;
        written(what, outputs, CDims::to_shape)
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> dcl::Result<()> {
        let (mut inputs, mut outputs) = ([CPluginTensor::NONE; MAX_TENSORS], [CPluginTensor::NONE; MAX_TENSORS]);
        let (mut nb_inputs, mut nb_outputs) = (0, 0);
        for (tensor, input) in inputs.iter_mut().zip(call.inputs()) {
            *tensor = CPluginTensor::new(input.as_ptr().cast_mut(), input.data_type(), input.shape());
            nb_inputs += 1;
        }
        for (tensor, mut output) in outputs.iter_mut().zip(call.outputs()) {
            *tensor = CPluginTensor::new(output.as_mut_ptr(), output.data_type(), output.shape());
            nb_outputs += 1;
        }
        let stream = call.cuda_stream().unwrap_or(std::ptr::null_mut());
        let [inputs, outputs] = [&inputs, &outputs].map(|tensors| tensors.each_ref().map(std::ptr::from_ref));
        call_back("enqueue", || {
            (self.enqueue)(self.user_data, inputs.as_ptr(), nb_inputs, outputs.as_ptr(), nb_outputs, stream)
        })
    }

    fn runs_on_cuda(&self) -> bool {
        self.runs_on_cuda
    }

    fn serialize(&self) -> dcl::Result<Vec<u8>> {
        let Some(serialize) = self.serialize else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("plugin {:?} does not say how it is serialized", self.type_name),
            ));
        };
        let mut length = 0;
        call_back("serialize", || serialize(self.user_data, std::ptr::null_mut(), 0, &mut length))?;
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(length).is_err() {
            return Err(Error::new(ErrorKind::Plugin, format!("the plugin's serialize wants {length} bytes")));
        }
        bytes.resize(length, 0u8);
        let mut again = 0;
        call_back("serialize", || serialize(self.user_data, bytes.as_mut_ptr().cast(), length, &mut again))?;
        match again == length {
            true => Ok(bytes),
            false => Err(Error::new(
                ErrorKind::Plugin,
                format!("the plugin's serialize gave {length} bytes in one call and {again} in the next"),
            )),
        }
    }
}

impl Drop for CallbackPlugin {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy
            && self.ownership.0.load(Ordering::Relaxed)
        {
            destroy(self.user_data);
        }
    }
}

impl fmt::Debug for CallbackPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.type_name, self.version)
    }
}

const _: () = assert!(size_of::<CPluginCreator>() == CPluginCreator::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers and pointers; the size comes first. A callback may be NULL.
unsafe impl SizedStruct for CPluginCreator {
    const FIRST_BYTE_LEN: usize = 40;
    const INITIAL: Self = CPluginCreator {
        struct_size: size_of::<Self>(),
        type_name: TextPointer::NULL,
        version: TextPointer::NULL,
        user_data: std::ptr::null_mut(),
        create: None,
    };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_plugin_creator_init(creator: OutPointer<CPluginCreator>, struct_size: usize) -> Status {
    call(|| creator.initialize("creator", struct_size))
}

/// A creator, used during one call that reads a plan.
struct Creator {
    type_name: String,
    version: String,
    create: Create,
    user_data: *mut c_void,
}

// SAFETY: the header requires a callback and `user_data` that any thread may use.
unsafe impl Send for Creator {}
// SAFETY: the header requires that several threads may use them at once.
unsafe impl Sync for Creator {}

/// Memory for a plugin structure. It is large enough for a structure of a newer header.
#[repr(C)]
union PluginStorage {
    plugin: CPlugin,
    bytes: [u64; 512],
}

impl Creator {
    fn create(&self, bytes: &[u8]) -> dcl::Result<CallbackPlugin> {
        let mut storage = PluginStorage { bytes: [0; 512] };
        storage.plugin = CPlugin::INITIAL;
        let start: *mut CPlugin = (&raw mut storage).cast();
        call_back("creator", || (self.create)(self.user_data, bytes.as_ptr().cast(), bytes.len(), start))?;
        // SAFETY: the structure was initialized above, and C has written numbers and pointers.
        let CPlugin { user_data, destroy, .. } = unsafe { storage.plugin };
        // SAFETY: the storage has 4096 initialized bytes.
        let plugin = unsafe { InPointer::of(start.cast_const()) }.required("plugin");
        let made = plugin.and_then(CallbackPlugin::new).map_err(Error::from).and_then(|made| {
            if made.type_name == self.type_name && made.version == self.version {
                made.ownership.take();
                return Ok(made);
            }
            Err(Error::new(
                ErrorKind::Plugin,
                format!(
                    "the creator of plugin {:?} version {:?} made a {:?} version {:?}",
                    self.type_name, self.version, made.type_name, made.version
                ),
            ))
        });
        made.inspect_err(|_| {
            if let Some(destroy) = destroy {
                destroy(user_data);
            }
        })
    }
}

/// A registry of the caller's creators.
pub(super) fn registry(creators: &InPointer<CPluginCreator>, nb_creators: i32) -> Result<PluginRegistry> {
    let mut registry = PluginRegistry::new();
    for creator in creators.structures("creators", nb_creators)? {
        let type_name = creator.type_name.get("type_name of a creator")?;
        let version = version(&creator.version)?;
        let made = Creator {
            type_name: type_name.to_owned(),
            version: version.to_owned(),
            create: required(creator.create, "create")?,
            user_data: creator.user_data,
        };
        registry.register(type_name, version, move |bytes| made.create(bytes))?;
    }
    Ok(registry)
}
