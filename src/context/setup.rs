//! What the runs of a context share.

use std::sync::Arc;

use super::communicator_binding::CommunicatorBinding;
use super::shapes::Shapes;

/// What the runs of a context share until the caller sets another communicator or other shapes.
pub(super) struct Setup {
    pub(super) binding: Arc<CommunicatorBinding>,
    pub(super) shapes: Arc<Shapes>,
}
