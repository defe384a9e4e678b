//! `dcl_environment_*`.

use std::ffi::CString;
use std::sync::{PoisonError, RwLock};

use dcl::Environment;
use dcl::environment::DEFAULT_SEED;

use super::arguments::{InPointer, OutPointer, SizedStruct, TextPointer, count, timeout_or_default, unsigned, zero};
use super::communicator::{CCommunicator, group_handle, ranks_of};
use super::copy_out::{TextBuffer, TextDestination};
use super::handle::{Handle, Object};
use super::status::{CallError, Result, Status, call};

/// `dcl_environment_config_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CEnvironmentConfig {
    struct_size: usize,
    rank: i32,
    world_size: i32,
    local_rank: i32,
    port: i32,
    rendezvous_port: i32,
    device: i32,
    host: TextPointer,
    secret: TextPointer,
    backend: TextPointer,
    seed: u64,
    timeout_ms: i64,
    verbose: i32,
    reserved: i32,
}

const _: () = assert!(size_of::<CEnvironmentConfig>() == CEnvironmentConfig::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers and pointers; the size comes first.
unsafe impl SizedStruct for CEnvironmentConfig {
    const FIRST_BYTE_LEN: usize = 80;
    const INITIAL: Self = CEnvironmentConfig {
        struct_size: size_of::<Self>(),
        rank: -1,
        world_size: -1,
        local_rank: -1,
        port: -1,
        rendezvous_port: -1,
        device: -1,
        host: TextPointer::NULL,
        secret: TextPointer::NULL,
        backend: TextPointer::NULL,
        seed: DEFAULT_SEED,
        timeout_ms: -1,
        verbose: 0,
        reserved: 0,
    };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_config_init(config: OutPointer<CEnvironmentConfig>, struct_size: usize) -> Status {
    call(|| config.initialize("config", struct_size))
}

/// `dcl_environment_t`.
pub(super) struct CEnvironment {
    /// `None` after it was finalized. Calls read it together, also one that waits for other ranks.
    environment: RwLock<Option<Environment>>,
    texts: Texts,
}

impl Object for CEnvironment {
    const TYPE: &'static str = "dcl_environment_t";
}

impl CEnvironment {
    fn with<R>(&self, act: impl FnOnce(&Environment) -> R) -> Result<R> {
        let environment = self.environment.read().unwrap_or_else(PoisonError::into_inner);
        environment.as_ref().map(act).ok_or_else(finalized)
    }
}

/// The texts that `dcl_environment_get_info` gives out.
struct Texts {
    launcher: CString,
    sources: Vec<(&'static str, CString)>,
}

impl Texts {
    fn new(environment: &Environment) -> Self {
        let c_text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        Texts {
            launcher: c_text(&environment.launcher().to_string()),
            sources: environment.sources().map(|(name, source)| (name, c_text(source))).collect(),
        }
    }

    /// Where the value of this name comes from.
    fn source(&self, name: &str) -> TextPointer {
        let found = self.sources.iter().find(|(known, _)| *known == name);
        found.map_or(TextPointer::NULL, |(_, source)| TextPointer::to(source))
    }
}

fn finalized() -> CallError {
    CallError::new(Status::INVALID_HANDLE, "the dcl_environment_t has been finalized")
}

/// Parses a number that is -1 if the caller does not set it.
fn optional_number(name: &str, number: i32) -> Result<Option<u32>> {
    if number == -1 { Ok(None) } else { unsigned(name, number).map(Some) }
}

fn port(name: &str, number: i32) -> Result<Option<u16>> {
    match optional_number(name, number)? {
        None => Ok(None),
        Some(number) => match u16::try_from(number) {
            Ok(port) => Ok(Some(port)),
            Err(_) => Err(CallError::invalid_argument(format!("{name} is {number}; a port is at most 65535"))),
        },
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_detect_launcher(
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let launcher = Environment::detect_launcher().map(|launcher| launcher.to_string());
        TextDestination { buffer, capacity, length }.write(&launcher.unwrap_or_default())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_initialize(
    config: InPointer<CEnvironmentConfig>,
    environment: OutPointer<Handle<CEnvironment>>,
) -> Status {
    call(|| {
        let output = environment.check("environment")?;
        let config = config.or_initial("config")?;
        zero("reserved of config", config.reserved)?;
        let mut builder = Environment::builder();
        if let Some(rank) = optional_number("rank", config.rank)? {
            builder = builder.rank(rank);
        }
        if let Some(world_size) = optional_number("world_size", config.world_size)? {
            builder = builder.world_size(world_size);
        }
        if let Some(local_rank) = optional_number("local_rank", config.local_rank)? {
            builder = builder.local_rank(local_rank);
        }
        if let Some(port) = port("port", config.port)? {
            builder = builder.port(port);
        }
        if let Some(port) = port("rendezvous_port", config.rendezvous_port)? {
            builder = builder.rendezvous_port(port);
        }
        if let Some(device) = optional_number("device", config.device)? {
            builder = builder.device(device);
        }
        if let Some(host) = config.host.optional("host")? {
            builder = builder.host(host);
        }
        if let Some(secret) = config.secret.optional("secret")? {
            builder = builder.secret(secret);
        }
        if let Some(backend) = config.backend.optional("backend")? {
            builder = builder.backend(backend.parse()?);
        }
        let timeout = timeout_or_default(config.timeout_ms)?;
        let environment = builder
            .seed(config.seed)
            .timeout(timeout)
            .verbose(config.verbose != 0)
            .called_at("a call of dcl_environment_initialize")
            .initialize()?;
        let texts = Texts::new(&environment);
        output.set(Handle::new(CEnvironment { environment: RwLock::new(Some(environment)), texts }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_finalize(environment: Handle<CEnvironment>) -> Status {
    call(|| {
        let environment = environment.take()?;
        // Another thread may hold the object, because it is inside a call with the same handle.
        let taken = environment.environment.write().unwrap_or_else(PoisonError::into_inner).take();
        Ok(taken.ok_or_else(finalized)?.finalize()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_free(environment: Handle<CEnvironment>) -> Status {
    call(|| environment.free())
}

/// `dcl_environment_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CEnvironmentInfo {
    struct_size: usize,
    rank: i32,
    world_size: i32,
    local_rank: i32,
    local_world_size: i32,
    seed: u64,
    launcher: TextPointer,
    rank_source: TextPointer,
    world_size_source: TextPointer,
    local_rank_source: TextPointer,
    local_world_size_source: TextPointer,
    rendezvous_source: TextPointer,
}

const _: () = assert!(size_of::<CEnvironmentInfo>() == CEnvironmentInfo::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers and pointers; the size comes first.
unsafe impl SizedStruct for CEnvironmentInfo {
    const FIRST_BYTE_LEN: usize = 80;
    const INITIAL: Self = CEnvironmentInfo {
        struct_size: size_of::<Self>(),
        rank: 0,
        world_size: 0,
        local_rank: 0,
        local_world_size: 0,
        seed: 0,
        launcher: TextPointer::NULL,
        rank_source: TextPointer::NULL,
        world_size_source: TextPointer::NULL,
        local_rank_source: TextPointer::NULL,
        local_world_size_source: TextPointer::NULL,
        rendezvous_source: TextPointer::NULL,
    };
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_get_info(
    environment: Handle<CEnvironment>,
    info: OutPointer<CEnvironmentInfo>,
) -> Status {
    call(|| {
        let (environment, info) = (environment.get()?, info.structure("info")?);
        let texts = &environment.texts;
        info.set(environment.with(|environment| CEnvironmentInfo {
            struct_size: 0,
            rank: count(environment.rank().index()),
            world_size: count(environment.world_size() as usize),
            local_rank: count(environment.local_rank() as usize),
            local_world_size: count(environment.local_world_size() as usize),
            seed: environment.seed(),
            launcher: TextPointer::to(&texts.launcher),
            rank_source: texts.source("rank"),
            world_size_source: texts.source("world_size"),
            local_rank_source: texts.source("local_rank"),
            local_world_size_source: texts.source("local_world_size"),
            rendezvous_source: texts.source("rendezvous"),
        })?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_get_communicator(
    environment: Handle<CEnvironment>,
    communicator: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (environment, communicator) = (environment.get()?, communicator.check("communicator")?);
        communicator.set(CCommunicator::handle(environment.with(|environment| environment.communicator().clone())?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_is_initialized(is_initialized: OutPointer<i32>) -> Status {
    call(|| {
        is_initialized.check("is_initialized")?.set(Environment::is_initialized().into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_new_group(
    environment: Handle<CEnvironment>,
    name: TextPointer,
    ranks: InPointer<i64>,
    nb_ranks: i64,
    group: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (environment, group) = (environment.get()?, group.check("group")?);
        let (name, ranks) = (name.get("name")?, ranks_of(&ranks, nb_ranks)?);
        group.set(group_handle(environment.with(|environment| environment.new_group(name, &ranks))??));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_environment_get_group(
    environment: Handle<CEnvironment>,
    name: TextPointer,
    group: OutPointer<Handle<CCommunicator>>,
) -> Status {
    call(|| {
        let (environment, group) = (environment.get()?, group.check("group")?);
        let name = name.get("name")?;
        group.set(CCommunicator::handle(environment.with(|environment| environment.group(name))??));
        Ok(())
    })
}
