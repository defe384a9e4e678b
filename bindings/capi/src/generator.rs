//! `dcl_generator_*`.

use dcl::environment::Generator;

use super::arguments::{OutPointer, VoidPointer};
use super::handle::{Handle, Object, TryRwLock};
use super::status::{Status, call};

/// `dcl_generator_t`.
pub(super) struct CGenerator {
    generator: TryRwLock<Generator, CGenerator>,
}

impl Object for CGenerator {
    const TYPE: &'static str = "dcl_generator_t";
}

impl CGenerator {
    pub(super) fn handle(generator: Generator) -> Handle<Self> {
        Handle::new(CGenerator { generator: TryRwLock::new(generator) })
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_generator_new(seed: u64, sequence: u64, generator: OutPointer<Handle<CGenerator>>) -> Status {
    call(|| {
        let generator = generator.check("generator")?;
        generator.set(CGenerator::handle(Generator::new(seed, sequence)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_generator_free(generator: Handle<CGenerator>) -> Status {
    call(|| generator.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_generator_next_u64(generator: Handle<CGenerator>, number: OutPointer<u64>) -> Status {
    call(|| {
        let (generator, number) = (generator.get()?, number.check("number")?);
        number.set(generator.generator.write()?.next_u64());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_generator_fill(generator: Handle<CGenerator>, bytes: VoidPointer, byte_len: usize) -> Status {
    call(|| {
        let generator = generator.get()?;
        bytes.fill("bytes", byte_len, |bytes| {
            generator.generator.write()?.fill_bytes(bytes);
            Ok(())
        })
    })
}
