//! Host memory that nothing changes.

use std::sync::Arc;

/// Bytes in host memory that nothing changes: a mapped file, or memory that ranks share. They are
/// freed with the last reference.
pub(crate) type ReadOnlyMemory = Arc<dyn AsRef<[u8]> + Send + Sync>;
