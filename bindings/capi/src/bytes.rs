//! Bytes of unknown length: `dcl_broadcast_bytes` and the like.

use super::arguments::{ConstVoidPointer, InPointer, OutPointer};
use super::buffer::CBuffer;
use super::collectives::root;
use super::communicator::CCommunicator;
use super::handle::Handle;
use super::status::{Result, Status, call};

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
        received.set(CBuffer::handle(all));
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
        received.set_array(all.into_iter().map(CBuffer::handle));
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
            received.set_array(all.into_iter().map(CBuffer::handle));
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
        let n = if communicator.rank() == root { communicator.world_size() } else { 0 };
        let (list, byte_lens) = (list.array("list", n)?, byte_lens.array("byte_lens", n)?);
        let parts = list.iter().zip(byte_lens).map(|(part, byte_len)| part.get("an element of list", byte_len));
        let parts = parts.collect::<Result<Vec<&[u8]>>>()?;
        let parts = (communicator.rank() == root).then_some(&parts[..]);
        received.set(CBuffer::handle(communicator.scatter_bytes(parts, root)?));
        Ok(())
    })
}
