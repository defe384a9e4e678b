//! `dcl_engine_*`.

use dcl::Engine;
use dcl::engine::IoMode;

use super::arguments::{CDims, ConstVoidPointer, InPointer, OutPointer, TextPointer, count, index};
use super::copy_out::{ByteBuffer, ByteDestination, TextBuffer, TextDestination};
use super::handle::{Handle, Object};
use super::network_objects::CNetwork;
use super::plugin::{CPluginCreator, registry};
use super::status::{CallError, Result, Status, call};

/// `dcl_engine_t`.
pub(super) struct CEngine {
    pub(super) engine: Engine,
}

impl Object for CEngine {
    const TYPE: &'static str = "dcl_engine_t";
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_build(network: Handle<CNetwork>, engine: OutPointer<Handle<CEngine>>) -> Status {
    call(|| {
        let network = network.get()?;
        let engine = engine.check("engine")?;
        let built = network.network.read()?.build()?;
        engine.set(Handle::new(CEngine { engine: built }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_free(engine: Handle<CEngine>) -> Status {
    call(|| engine.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_serialize(
    engine: Handle<CEngine>,
    buffer: ByteBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| ByteDestination { buffer, capacity, length }.write(&engine.get()?.engine.serialize()?))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_deserialize(
    plan: ConstVoidPointer,
    byte_len: usize,
    creators: InPointer<CPluginCreator>,
    nb_creators: i32,
    engine: OutPointer<Handle<CEngine>>,
) -> Status {
    call(|| {
        let engine = engine.check("engine")?;
        let registry = registry(&creators, nb_creators)?;
        let read = Engine::deserialize_with(plan.get("plan", byte_len)?, &registry)?;
        engine.set(Handle::new(CEngine { engine: read }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_inspect(
    engine: Handle<CEngine>,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let json = engine.get()?.engine.inspect().to_json();
        TextDestination { buffer, capacity, length }.write(&json.to_string())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_fingerprint(
    engine: Handle<CEngine>,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| TextDestination { buffer, capacity, length }.write(engine.get()?.engine.fingerprint()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_nb_warnings(engine: Handle<CEngine>, nb_warnings: OutPointer<i32>) -> Status {
    call(|| {
        let (engine, nb_warnings) = (engine.get()?, nb_warnings.check("nb_warnings")?);
        nb_warnings.set(count(engine.engine.warnings().len()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_warning(
    engine: Handle<CEngine>,
    index: i32,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let engine = engine.get()?;
        let warnings = engine.engine.warnings().iter().map(String::as_str);
        TextDestination { buffer, capacity, length }.write_nth("warning", index, warnings)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_nb_io_tensors(engine: Handle<CEngine>, nb_tensors: OutPointer<i32>) -> Status {
    call(|| {
        let (engine, nb_tensors) = (engine.get()?, nb_tensors.check("nb_tensors")?);
        nb_tensors.set(count(engine.engine.io_tensors().len()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_io_tensor_name(
    engine: Handle<CEngine>,
    index: i32,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let engine = engine.get()?;
        let names = engine.engine.io_tensors().iter().map(|tensor| tensor.name.as_str());
        TextDestination { buffer, capacity, length }.write_nth("input or output", index, names)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_tensor_io_mode(
    engine: Handle<CEngine>,
    name: TextPointer,
    mode: OutPointer<i32>,
) -> Status {
    call(|| {
        let engine = engine.get()?;
        let (name, mode) = (name.get("name")?, mode.check("mode")?);
        mode.set(match engine.engine.io_tensor(name).map(|tensor| tensor.mode) {
            Err(_) => 0,
            Ok(IoMode::Input) => 1,
            Ok(IoMode::Output) => 2,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_tensor_data_type(
    engine: Handle<CEngine>,
    name: TextPointer,
    data_type: OutPointer<i32>,
) -> Status {
    call(|| {
        let engine = engine.get()?;
        let (name, data_type) = (name.get("name")?, data_type.check("data_type")?);
        data_type.set(engine.engine.io_tensor(name)?.data_type.number());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_tensor_shape(
    engine: Handle<CEngine>,
    name: TextPointer,
    dims: OutPointer<CDims>,
) -> Status {
    call(|| {
        let engine = engine.get()?;
        let (name, dims) = (name.get("name")?, dims.check("dims")?);
        dims.set(engine.engine.io_tensor(name)?.dims.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_profile_shape(
    engine: Handle<CEngine>,
    name: TextPointer,
    profile_index: i32,
    selector: i32,
    dims: OutPointer<CDims>,
) -> Status {
    call(|| {
        let engine = engine.get()?;
        let (name, dims) = (name.get("name")?, dims.check("dims")?);
        let point = point(selector)?;
        let profile = index("optimization profile", profile_index, engine.engine.optimization_profile_count())?;
        dims.set(engine.engine.profile_shapes(name, profile)?[point].into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_engine_get_nb_optimization_profiles(engine: Handle<CEngine>, nb_profiles: OutPointer<i32>) -> Status {
    call(|| {
        let (engine, nb_profiles) = (engine.get()?, nb_profiles.check("nb_profiles")?);
        nb_profiles.set(count(engine.engine.optimization_profile_count()));
        Ok(())
    })
}

/// `dcl_opt_profile_selector_t`.
fn point(selector: i32) -> Result<usize> {
    match selector {
        0..=2 => Ok(selector as usize),
        _ => Err(CallError::invalid_argument(format!(
            "{selector} selects no shape of a profile; min is 0, opt 1, max 2"
        ))),
    }
}
