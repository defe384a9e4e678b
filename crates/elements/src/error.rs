//! The error of all calls: its kind, the rank and the layer it is about, and a sentence with the
//! rule, what was expected and what came.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::rank::Rank;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident,)+) => {
        /// What went wrong, for programs. The text of an [`Error`] is for people.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* $kind,)+
        }

        impl ErrorKind {
            /// All of them.
            pub const ALL: [ErrorKind; [$(stringify!($kind)),+].len()] = [$(ErrorKind::$kind),+];
        }
    };
}

kinds! {
    /// An argument is wrong by itself, with any network and communicator.
    InvalidArgument,
    /// The network breaks rules. [`Error::mistakes`] lists every place.
    InvalidNetwork,
    /// Bytes are no plan, a plan of another version, or a damaged plan.
    InvalidPlan,
    /// A shape is outside its profile, or breaks a shape rule of a layer.
    InvalidShape,
    /// The length, type, alignment, address or memory of a buffer does not fit its tensor.
    InvalidBuffer,
    /// A layer's participants do not fit the communicator.
    InvalidCommunicator,
    /// The rank is not a member of the group.
    NotAMember,
    /// The call needs something that has not been set: a communicator, a shape, a binding.
    NotReady,
    /// The call is valid, but not on this machine, device, backend or type.
    Unsupported,
    /// Ranks made different calls where they have to make the same.
    Disagreement,
    /// Other ranks did not make the call by the deadline.
    DeadlineExceeded,
    /// Another rank left the communicator while this one needed it.
    PeerLost,
    /// A rank failed or called `abort` of its communicator. The text names the rank and the reason.
    Aborted,
    /// A rank refused this run of a context or bound layer, or failed in this request. The
    /// communicator still works. The text names the rank and the reason.
    RunRefused,
    /// The program's interrupt hook ended a wait.
    Interrupted,
    /// A plugin layer failed or panicked.
    Plugin,
    /// The operating system, or a library of the system, refused something.
    System,
}

/// An error of this crate.
///
/// It prints as one sentence: the rank and the layer, if they are known, then the rule, what was
/// expected and what came:
///
/// ```text
/// layer "grad_sync" (reduce_scatter): dimension 0 is 10, which is not a multiple of
/// 4 ranks; input is float32 [10, 8]
/// ```
#[derive(Clone)]
pub struct Error {
    inner: Box<ErrorParts>,
}

#[derive(Clone)]
struct ErrorParts {
    kind: ErrorKind,
    rank: Option<Rank>,
    /// What the sentence is about: `layer "grad_sync" (reduce_scatter)`, `tensor "x"`.
    subject: Option<String>,
    message: String,
    mistakes: Vec<Error>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with a sentence of the caller's, for plugins and other code that extends this
    /// crate.
    ///
    /// ```
    /// # use distcollective_elements::error::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::Plugin, "the weights do not fit");
    /// assert_eq!(error.kind(), ErrorKind::Plugin);
    /// assert_eq!(error.to_string(), "the weights do not fit");
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error {
            inner: Box::new(ErrorParts {
                kind,
                rank: None,
                subject: None,
                message: message.into(),
                mistakes: Vec::new(),
                source: None,
            }),
        }
    }

    /// Wraps an error of another library as the cause of this one.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.inner.source = Some(Arc::new(source));
        self
    }

    /// Says what the error is about, such as `layer "grad_sync" (reduce_scatter)`, unless the error
    /// says so already.
    pub fn about(mut self, subject: impl FnOnce() -> String) -> Self {
        self.inner.subject.get_or_insert_with(subject);
        self
    }

    /// Adds text at the end of the sentence.
    pub fn followed_by(mut self, text: &str) -> Self {
        self.inner.message.push_str(text);
        self
    }

    /// Sets the rank on which the error happened, unless that is set.
    pub fn on_rank(mut self, rank: Rank) -> Self {
        self.inner.rank.get_or_insert(rank);
        self
    }

    /// All mistakes of one network as one error.
    pub fn from_mistakes(mistakes: Vec<Error>) -> Self {
        let mut error = Error::new(ErrorKind::InvalidNetwork, "");
        error.inner.mistakes = mistakes;
        error
    }

    /// What went wrong, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The communicator rank on which the error happened, if it is known.
    pub fn rank(&self) -> Option<Rank> {
        self.inner.rank
    }

    /// What the error is about: `layer "grad_sync" (reduce_scatter)`, `tensor "x"`.
    pub fn subject(&self) -> Option<&str> {
        self.inner.subject.as_deref()
    }

    /// Every mistake that building found in the network. Empty on all other errors.
    pub fn mistakes(&self) -> &[Error] {
        &self.inner.mistakes
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.inner;
        match inner.mistakes.as_slice() {
            [] => {}
            [one] => return one.fmt(f),
            many => {
                write!(f, "{} mistakes:", many.len())?;
                for mistake in many {
                    write!(f, "\n  {mistake}")?;
                }
                return Ok(());
            }
        }
        if let Some(rank) = inner.rank {
            write!(f, "rank {rank}: ")?;
        }
        if let Some(subject) = &inner.subject {
            write!(f, "{subject}: ")?;
        }
        f.write_str(&inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Builds an [`Error`](crate::error::Error) from a kind and a format string.
#[macro_export]
macro_rules! error {
    ($kind:ident, $($text:tt)*) => {
        $crate::error::Error::new($crate::error::ErrorKind::$kind, format!($($text)*))
    };
}

/// Returns early with an [`Error`](crate::error::Error) from a kind and a format string.
#[macro_export]
macro_rules! bail {
    ($($arguments:tt)*) => {
        return Err($crate::error!($($arguments)*))
    };
}

pub use {bail, error};
