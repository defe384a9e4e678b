//! Bytes of unknown length: `dcl_broadcast_bytes` and the like.

use dcl::Communicator;

use super::arguments::{ConstVoidPointer, InPointer, OutPointer};
use super::buffer::CBuffer;
use super::collectives::root;
use super::communicator::CCommunicator;
use super::handle::Handle;
use super::status::{Result, Status, call};

/// A buffer of bytes that were received.
fn buffer(bytes: Vec<u8>) -> Handle<CBuffer> {
    Handle::new(CBuffer::new(bytes.into()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_broadcast_bytes(
    communicator: Handle<CCommunicator>,
    bytes: ConstVoidPointer,
    byte_len: usize,
    root: i32,
    received: OutPointer<Handle<CBuffer>>,
) -> Status {
    call(|| {
        let (communicator, root) = (communicator.get()?, self::root(root)?);
        let (communicator, received) = (&communicator.communicator, received.check("received")?);
        let mut all = match communicator.rank() == root {
            true => bytes.get("bytes", byte_len)?.to_vec(),
            false => Vec::new(),
        };
        communicator.broadcast_bytes(&mut all, root)?;
        received.set(buffer(all));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_all_gather_bytes(
    communicator: Handle<CCommunicator>,
    bytes: ConstVoidPointer,
    byte_len: usize,
    received: OutPointer<Handle<CBuffer>>,
) -> Status {
    call(|| {
        let (communicator, received) = (communicator.get()?, received.check("received")?);
        let all = communicator.communicator.all_gather_bytes(bytes.get("bytes", byte_len)?)?;
        received.set_array(all.into_iter().map(buffer));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_gather_bytes(
    communicator: Handle<CCommunicator>,
    bytes: ConstVoidPointer,
    byte_len: usize,
    root: i32,
    received: OutPointer<Handle<CBuffer>>,
) -> Status {
    call(|| {
        let (communicator, root) = (communicator.get()?, self::root(root)?);
        let communicator = &communicator.communicator;
        let received = (communicator.rank() == root).then(|| received.check("received")).transpose()?;
        let all = communicator.gather_bytes(bytes.get("bytes", byte_len)?, root)?;
        if let (Some(received), Some(all)) = (received, all) {
            received.set_array(all.into_iter().map(buffer));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_scatter_bytes(
    communicator: Handle<CCommunicator>,
    list: InPointer<ConstVoidPointer>,
    byte_lens: InPointer<usize>,
    root: i32,
    received: OutPointer<Handle<CBuffer>>,
) -> Status {
    call(|| {
        let (communicator, root) = (communicator.get()?, self::root(root)?);
        let (communicator, received) = (&communicator.communicator, received.check("received")?);
        let parts = match communicator.rank() == root {
            true => Some(parts(communicator, &list, &byte_lens)?),
            false => None,
        };
        received.set(buffer(communicator.scatter_bytes(parts.as_deref(), root)?));
        Ok(())
    })
}

/// A copy of each element of the root's list.
fn parts(
    communicator: &Communicator,
    list: &InPointer<ConstVoidPointer>,
    byte_lens: &InPointer<usize>,
) -> Result<Vec<Vec<u8>>> {
    let n = communicator.world_size();
    let (list, byte_lens) = (list.array("list", n)?, byte_lens.array("byte_lens", n)?);
    let part =
        |(bytes, byte_len): (&ConstVoidPointer, &usize)| Ok(bytes.get("an element of list", *byte_len)?.to_vec());
    list.iter().zip(&byte_lens).map(part).collect()
}
