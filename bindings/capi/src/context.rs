//! `dcl_execution_context_*`.

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use dcl::ExecutionContext;
use dcl::context::{Bindings, ContextOptions, Profiler};
use dcl::stream::EnqueueError;
use dcl::tensor::Dims;

use super::arguments::{
    CDims, InPointer, OutPointer, SizedStruct, TextPointer, VoidPointer, count, index, timeout, zero,
};
use super::communicator::CCommunicator;
use super::engine::CEngine;
use super::handle::{Handle, Object, TryRwLock};
use super::library::UserData;
use super::owned_work::{FreeBindings, RunWork};
use super::status::{CallError, Result, Status, call, lock};
use super::stream::{AnyWork, CStream, CWork, enqueue};

/// `dcl_execution_context_options_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CExecutionContextOptions {
    struct_size: usize,
    cuda_graph: i32,
    reserved: i32,
}

const _: () = assert!(size_of::<CExecutionContextOptions>() == CExecutionContextOptions::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers; the size comes first.
unsafe impl SizedStruct for CExecutionContextOptions {
    const FIRST_BYTE_LEN: usize = 16;
    const INITIAL: Self = CExecutionContextOptions { struct_size: size_of::<Self>(), cuda_graph: 0, reserved: 0 };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_options_init(
    options: OutPointer<CExecutionContextOptions>,
    struct_size: usize,
) -> Status {
    call(|| options.initialize("options", struct_size))
}

/// `dcl_execution_context_t`.
pub(super) struct CExecutionContext {
    state: TryRwLock<State, CExecutionContext>,
}

struct State {
    context: ExecutionContext,
    /// The memory that each input and output is bound to, in the engine's order.
    addresses: Vec<Address>,
    /// How often `addresses` has changed.
    version: u64,
    /// Bindings that no run uses.
    free: Arc<FreeBindings>,
}

/// Memory of the caller. `start` is 0 for a tensor that is not bound.
#[derive(Clone, Copy, Default)]
struct Address {
    start: usize,
    byte_len: usize,
}

/// The version of bindings to which nothing is bound.
const UNBOUND: u64 = 0;

impl Object for CExecutionContext {
    const TYPE: &'static str = "dcl_execution_context_t";
}

impl State {
    fn index(&self, name: &str) -> Result<usize> {
        Ok(self.context.engine().io_index(name)?)
    }

    /// Returns bindings with the current addresses. Runs may overlap, so each has bindings of its
    /// own; a run reuses those of a finished run, and binds them anew only if an address has
    /// changed.
    fn bindings(&self) -> Result<Bindings> {
        let kept = lock(&self.free).pop();
        let (version, mut bindings) = kept.unwrap_or_else(|| (UNBOUND, self.context.create_bindings()));
        if version == self.version {
            return Ok(bindings);
        }
        for (io, address) in self.context.engine().io_tensors().iter().zip(&self.addresses) {
            let start = std::ptr::with_exposed_provenance_mut(address.start);
            // SAFETY: the header requires memory that stays valid until every run has ended that
            // was enqueued while it was bound.
            unsafe { bindings.bind_address(&io.name, start, address.byte_len)? };
        }
        Ok(bindings)
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_create_execution_context(
    engine: Handle<CEngine>,
    options: InPointer<CExecutionContextOptions>,
    context: OutPointer<Handle<CExecutionContext>>,
) -> Status {
    call(|| {
        let (engine, context) = (engine.get()?, context.check("context")?);
        let options = options.or_initial("options")?;
        zero("reserved of options", options.reserved)?;
        let options = match options.cuda_graph {
            0 => ContextOptions::default(),
            2 => ContextOptions::default().cuda_graph(true).graphs_without_agreement(true),
            _ => ContextOptions::default().cuda_graph(true),
        };
        let made = engine.engine.create_execution_context_with(options)?;
        let addresses = vec![Address::default(); made.engine().io_tensors().len()];
        let state = State { context: made, addresses, version: UNBOUND + 1, free: Arc::default() };
        context.set(Handle::new(CExecutionContext { state: TryRwLock::new(state) }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_free(context: Handle<CExecutionContext>) -> Status {
    call(|| context.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_set_communicator(
    context: Handle<CExecutionContext>,
    communicator: Handle<CCommunicator>,
) -> Status {
    call(|| {
        let (context, communicator) = (context.get()?, communicator.get()?);
        context.state.write()?.context.set_communicator(&communicator.communicator)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_set_timeout(context: Handle<CExecutionContext>, timeout_ms: i64) -> Status {
    call(|| {
        let (context, timeout) = (context.get()?, timeout(timeout_ms)?);
        context.state.write()?.context.set_timeout(timeout);
        Ok(())
    })
}

/// `dcl_layer_time_t`.
#[repr(C)]
struct CLayerTime {
    layer: *const c_char,
    begin_ns: i64,
    duration_ns: i64,
    wait_ns: i64,
    input_bytes: u64,
    output_bytes: u64,
}

/// `dcl_profiler_callback_t`.
type ProfilerCallback = extern "C" fn(time: *const CLayerTime, user_data: *mut c_void);

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_set_profiler(
    context: Handle<CExecutionContext>,
    callback: Option<ProfilerCallback>,
    user_data: *mut c_void,
) -> Status {
    call(|| {
        let context = context.get()?;
        let user_data = UserData(user_data);
        let profiler = callback.map(|callback| -> Profiler {
            Arc::new(move |time| {
                let UserData(user_data) = &user_data;
                // A name may contain a NUL.
                let Ok(layer) = CString::new(time.layer.replace('\0', " ")) else { return };
                let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
                let time = CLayerTime {
                    layer: layer.as_ptr(),
                    begin_ns: nanoseconds(time.begin),
                    duration_ns: nanoseconds(time.duration),
                    wait_ns: time.waited.map_or(-1, nanoseconds),
                    input_bytes: time.input_bytes as u64,
                    output_bytes: time.output_bytes as u64,
                };
                callback(&time, *user_data);
            })
        });
        context.state.write()?.context.set_profiler(profiler);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_set_optimization_profile(
    context: Handle<CExecutionContext>,
    profile_index: i32,
) -> Status {
    call(|| {
        let context = context.get()?;
        let context = &mut context.state.write()?.context;
        let profile = index("optimization profile", profile_index, context.engine().optimization_profile_count())?;
        context.set_optimization_profile(profile)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_get_optimization_profile(
    context: Handle<CExecutionContext>,
    profile_index: OutPointer<i32>,
) -> Status {
    call(|| {
        let context = context.get()?;
        let profile_index = profile_index.check("profile_index")?;
        profile_index.set(count(context.state.read()?.context.optimization_profile()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_set_input_shapes(
    context: Handle<CExecutionContext>,
    names: InPointer<TextPointer>,
    dims: InPointer<CDims>,
    nb_inputs: i32,
) -> Status {
    call(|| {
        let context = context.get()?;
        let names = names.array("names", nb_inputs)?;
        let dims = dims.array("dims", nb_inputs)?;
        let shapes: Vec<(&str, Dims)> = (names.iter().zip(dims))
            .map(|(name, dims)| Ok((name.get("a name")?, dims.to_dims()?)))
            .collect::<Result<_>>()?;
        context.state.write()?.context.set_input_shapes(&shapes)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_get_tensor_shape(
    context: Handle<CExecutionContext>,
    name: TextPointer,
    dims: OutPointer<CDims>,
) -> Status {
    call(|| {
        let context = context.get()?;
        let (name, dims) = (name.get("name")?, dims.check("dims")?);
        dims.set(context.state.read()?.context.tensor_shape(name)?.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_set_tensor_address(
    context: Handle<CExecutionContext>,
    name: TextPointer,
    address: VoidPointer,
    byte_len: usize,
) -> Status {
    call(|| {
        let (context, name) = (context.get()?, name.get("name")?);
        let mut state = context.state.write()?;
        let index = state.index(name)?;
        state.addresses[index] = Address { start: address.address().expose_provenance(), byte_len };
        state.version += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_get_tensor_address(
    context: Handle<CExecutionContext>,
    name: TextPointer,
    address: OutPointer<*mut c_void>,
) -> Status {
    call(|| {
        let context = context.get()?;
        let (name, address) = (name.get("name")?, address.check("address")?);
        let state = context.state.read()?;
        address.set(std::ptr::with_exposed_provenance_mut(state.addresses[state.index(name)?].start));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_refuse_run(context: Handle<CExecutionContext>, reason: TextPointer) -> Status {
    call(|| {
        let (context, reason) = (context.get()?, reason.get("reason")?);
        context.state.write()?.context.refuse_run(reason)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_execution_context_enqueue(
    context: Handle<CExecutionContext>,
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
) -> Status {
    call(|| {
        let context = context.get()?;
        let mut state = context.state.write()?;
        enqueue(stream, work, |stream| {
            let bindings = state.bindings()?;
            let (version, free) = (state.version, Arc::clone(&state.free));
            match state.context.enqueue(bindings, stream) {
                Ok(work) => Ok(AnyWork::Run(RunWork { work, version, free })),
                Err(EnqueueError { error, operands }) => {
                    lock(&free).push((version, *operands));
                    Err(CallError::from(error))
                }
            }
        })
    })
}
