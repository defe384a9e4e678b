//! A node's attributes. They are read leniently, because tools write attributes that an operation
//! does not have: names in upper or lower case; `reduce_op` counts for reductions only, and `root`
//! for operations that have one.

use std::ffi::CStr;

use distcollective::{CollectiveOperation, DistCollectiveLayer, Error, ErrorKind, ReduceOperation, Result};
use ort_sys::OrtKernelInfo;

use crate::api::Api;

/// How ONNX Runtime gives a node's attributes; `None` for one that is absent.
pub(crate) trait Attributes {
    fn text(&self, name: &CStr) -> Result<Option<String>>;
    fn integer(&self, name: &CStr) -> Result<Option<i64>>;
    fn integers(&self, name: &CStr) -> Result<Option<Vec<i64>>>;
}

/// The layer that a node describes, for a communicator of `world_size` ranks.
pub(crate) fn layer_of(node: &impl Attributes, world_size: u32, name: &str) -> Result<DistCollectiveLayer> {
    let operation = node
        .text(c"collective_operation")?
        .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the attribute collective_operation is missing"))?;
    let operation: CollectiveOperation = operation.parse()?;
    let reduce_op = match node.text(c"reduce_op")? {
        Some(reduce_op) if operation.reduces() => Some(reduce_op.parse::<ReduceOperation>()?),
        None if operation.reduces() => {
            let text = format!("the attribute reduce_op is missing, and {operation} reduces");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        _ => None,
    };
    let root = if operation.has_root() { node.integer(c"root")?.unwrap_or(-1) } else { -1 };
    let groups = node.integers(c"groups")?.unwrap_or_default();
    let group_size = node.integer(c"group_size")?.unwrap_or(0);
    if !groups.is_empty() && group_size != 0 && group_size != groups.len() as i64 {
        let text = format!("group_size is {group_size}, and groups {groups:?} has {} ranks", groups.len());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let nb_rank = match (node.integer(c"nb_rank")?, group_size) {
        (Some(nb_rank), 1..) if groups.is_empty() && nb_rank != group_size => {
            let text = format!(
                "nb_rank is {nb_rank}, and group_size {group_size}; both are the number of ranks. Polygraphy writes its \
                 options --nb-rank, whose default is 1, and --gpus: give it --nb-rank {group_size}"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        (Some(nb_rank), _) => nb_rank,
        (None, _) if !groups.is_empty() => groups.len() as i64,
        (None, 0) => world_size.into(),
        (None, group_size) => group_size,
    };
    let mut layer = DistCollectiveLayer::new(operation, reduce_op, root, &groups)?;
    let nb_rank = u32::try_from(nb_rank).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, format!("nb_rank is {nb_rank}, which is no number of ranks"))
    })?;
    layer.set_nb_rank(nb_rank)?;
    layer.set_name(name);
    Ok(layer)
}

/// A node for which a kernel is made.
pub(crate) struct Node {
    api: Api,
    info: *const OrtKernelInfo,
}

impl Node {
    /// # Safety
    ///
    /// The information exists as long as the node is used.
    pub(crate) unsafe fn new(api: Api, info: *const OrtKernelInfo) -> Self {
        Node { api, info }
    }

    /// The layer that the node describes, for a communicator of `world_size` ranks.
    pub(crate) fn layer(&self, world_size: u32) -> Result<DistCollectiveLayer> {
        // SAFETY: the promise of `new`.
        let name = unsafe { self.api.node_name(self.info)? };
        layer_of(self, world_size, &name).map_err(|error| {
            // The library's error may have a subject of its own: the operation.
            Error::new(error.kind(), error.to_string()).about(|| format!("node {name:?} (DistCollective)"))
        })
    }
}

impl Attributes for Node {
    fn text(&self, name: &CStr) -> Result<Option<String>> {
        // SAFETY: the promise of `new`.
        self.attribute(name, TEXT, unsafe { self.api.text_attribute(self.info, name) })
    }

    fn integer(&self, name: &CStr) -> Result<Option<i64>> {
        // SAFETY: the promise of `new`.
        self.attribute(name, INTEGER, unsafe { self.api.integer_attribute(self.info, name) })
    }

    fn integers(&self, name: &CStr) -> Result<Option<Vec<i64>>> {
        // SAFETY: the promise of `new`.
        match unsafe { self.api.integers_attribute(self.info, name) } {
            // Also an attribute of another type has no integers.
            Ok(integers) if integers.is_empty() => match self.type_of(name) {
                None | Some(LIST) => Ok(Some(integers)),
                Some(found) => Err(wrong_type(name, found, INTEGERS)),
            },
            integers => self.attribute(name, INTEGERS, integers),
        }
    }
}

impl Node {
    /// An attribute that could be read, or none. ONNX Runtime's error does not tell whether an
    /// attribute is absent or of another type.
    fn attribute<T>(&self, name: &CStr, expected: &str, value: Result<T>) -> Result<Option<T>> {
        let error = match value {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        match self.type_of(name) {
            None => Ok(None),
            // It can be read now.
            Some(found) if found == expected => Err(error),
            Some(found) => Err(wrong_type(name, found, expected)),
        }
    }

    /// The type of an attribute, if there is one by that name: the first as which it can be read.
    fn type_of(&self, name: &CStr) -> Option<&'static str> {
        let (api, info) = (self.api, self.info);
        // SAFETY: the promise of `new`.
        let found = unsafe {
            // Any attribute can be read as a list, which is empty if the type is another one.
            let list = api.integers_attribute(info, name);
            [
                api.text_attribute(info, name).is_ok().then_some(TEXT),
                api.integer_attribute(info, name).is_ok().then_some(INTEGER),
                api.float_attribute(info, name).is_ok().then_some("a float"),
                list.as_ref().is_ok_and(|list| !list.is_empty()).then_some(INTEGERS),
                api.float_count(info, name).is_ok_and(|count| count > 0).then_some("a list of floats"),
                list.is_ok().then_some(LIST),
            ]
        };
        found.into_iter().flatten().next()
    }
}

const TEXT: &str = "a text";
const INTEGER: &str = "an integer";
const INTEGERS: &str = "a list of integers";
/// A list that is empty, or of texts: ONNX Runtime does not tell them apart.
const LIST: &str = "a list";

fn wrong_type(name: &CStr, found: &str, expected: &str) -> Error {
    let name = name.to_string_lossy();
    let text = format!("the attribute {name} is {found}; it has to be {expected}");
    Error::new(ErrorKind::InvalidArgument, text)
}
