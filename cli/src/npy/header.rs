//! The header of an `.npy` file: a magic, the format's version, and a Python dictionary of three
//! entries.
//!
//! The parser takes the dictionaries that numpy writes, in one pass and without recursion. So a
//! header takes time and memory in proportion to its length, whatever its bytes are.

use std::fmt;
use std::io::{ErrorKind, Read};

use distcollective::DataType;
use distcollective::tensor::{MAX_DIMS, Shape};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest dictionary in bytes, as in numpy.
const MAX_LEN: usize = 10_000;

/// The data of a file that numpy writes begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// What a header says.
#[derive(Debug, PartialEq)]
pub struct Header {
    pub descriptor: Descriptor,
    pub fortran_order: bool,
    pub shape: Shape,
}

impl Header {
    /// Reads a header, and gives it with its length in bytes. The reader is then at the first byte
    /// of the data.
    pub fn read(reader: &mut impl Read) -> Result<(Self, u64), String> {
        let mut preamble = [0; 8];
        read_exact(reader, &mut preamble)?;
        let Some([major, minor]) = preamble.strip_prefix(MAGIC) else {
            return Err(format!("it is not an .npy file, which begins with \"\\x93NUMPY\"; {WRITES}"));
        };
        let mut len = [0; 4];
        let len_of_len = match (major, minor) {
            (1, 0) => 2,
            (2 | 3, 0) => 4,
            _ => return Err(format!("it has the .npy format {major}.{minor}; 1.0, 2.0 and 3.0 are known")),
        };
        read_exact(reader, &mut len[..len_of_len])?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_LEN {
            return Err(format!("its header has {len} bytes, and at most {MAX_LEN} are read"));
        }
        let mut text = Vec::new();
        reader.take(len as u64).read_to_end(&mut text).map_err(|e| e.to_string())?;
        if text.len() < len {
            return Err(ends_within_header());
        }
        let header = Parser { text: &text, at: 0 }.header()?;
        Ok((header, (preamble.len() + len_of_len + text.len()) as u64))
    }

    /// A header in format 1.0, whose length is a multiple of [`ALIGNMENT`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let dims: Vec<String> = self.shape.as_slice().iter().map(usize::to_string).collect();
        let dims = if let [one] = &dims[..] { format!("{one},") } else { dims.join(", ") };
        let (descriptor, order) = (&self.descriptor, if self.fortran_order { "True" } else { "False" });
        let mut text = format!("{{'descr': '{descriptor}', 'fortran_order': {order}, 'shape': ({dims}), }}");
        let before = MAGIC.len() + 4;
        let spaces = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - (before + text.len() + 1);
        text.extend(std::iter::repeat_n(' ', spaces));
        text.push('\n');
        // Eight dimensions of twenty digits are far from the limit of two bytes.
        let len = (text.len() as u16).to_le_bytes();
        [MAGIC, &[1, 0], &len, text.as_bytes()].concat()
    }
}

const WRITES: &str = "numpy.save writes such files";

fn read_exact(reader: &mut impl Read, bytes: &mut [u8]) -> Result<(), String> {
    reader.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => ends_within_header(),
        _ => error.to_string(),
    })
}

fn ends_within_header() -> String {
    format!("it is not an .npy file, because it ends within the header; {WRITES}")
}

/// Numpy's description of an element: `<f4`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descriptor {
    pub big_endian: bool,
    /// The letter of the kind: `f` for floats.
    kind: u8,
    /// In bytes; for text in characters.
    size: u32,
}

impl Descriptor {
    /// The description of a type's elements in a file. Types that numpy does not have are kept as
    /// unsigned integers. `None` if no file can have the type.
    pub fn of(data_type: DataType) -> Option<Self> {
        let (kind, size) = match data_type {
            DataType::Float32 => (b'f', 4),
            DataType::Float16 => (b'f', 2),
            DataType::Bfloat16 => (b'u', 2),
            DataType::Int64 => (b'i', 8),
            DataType::Int32 => (b'i', 4),
            DataType::Int8 => (b'i', 1),
            DataType::Uint8 | DataType::Float8E4M3 | DataType::Float8E5M2 => (b'u', 1),
            DataType::Bool => (b'b', 1),
            DataType::Float64 => (b'f', 8),
            DataType::Uint32 => (b'u', 4),
            DataType::Uint64 => (b'u', 8),
            _ => return None,
        };
        Some(Descriptor { big_endian: false, kind, size })
    }

    /// Whether elements of this description can be the bits of a type.
    fn can_hold(self, data_type: DataType) -> bool {
        let holds = |kind| Descriptor::of(data_type).is_some_and(|of| (of.kind, of.size) == (kind, self.size));
        // The package ml_dtypes describes bfloat16 and float8 as bytes without a type.
        holds(self.kind) || (self.kind == b'V' && is_kept_as_integer(data_type) && holds(b'u'))
    }

    /// The type of the elements: the wanted one, or without one that which numpy gives them.
    pub fn data_type(self, wanted: Option<DataType>) -> Result<DataType, String> {
        match wanted {
            Some(wanted) if self.can_hold(wanted) => Ok(wanted),
            Some(wanted) => {
                let kept = if is_kept_as_integer(wanted) {
                    Descriptor::of(wanted)
                        .map_or(String::new(), |kept| format!(", which numpy keeps as {}", kept.name()))
                } else {
                    String::new()
                };
                Err(format!("it holds {}, not {wanted}{kept}", self.name()))
            }
            None => {
                let mut types = DataType::ALL.into_iter().filter(|data_type| !is_kept_as_integer(*data_type));
                types.find(|data_type| self.can_hold(*data_type)).ok_or_else(|| self.refusal())
            }
        }
    }

    /// Numpy's name of the type.
    fn name(self) -> String {
        let bits = self.size.saturating_mul(8);
        match self.kind {
            b'b' => "bool".to_owned(),
            b'f' => format!("float{bits}"),
            b'i' => format!("int{bits}"),
            b'u' => format!("uint{bits}"),
            b'c' => format!("complex{bits}"),
            b'S' | b'a' | b'U' => "text".to_owned(),
            b'O' => "Python objects".to_owned(),
            b'M' => "dates".to_owned(),
            b'm' => "durations".to_owned(),
            b'V' => format!("elements of {} bytes without a type", self.size),
            kind => format!("elements of the unknown kind {:?}", char::from(kind)),
        }
    }

    fn refusal(self) -> String {
        let advice = match (self.kind, self.size) {
            (b'f', 9..) => "; convert it first: x.astype('float64')",
            (b'i', 2) => "; convert it first: x.astype('int32')",
            (b'u', 2) => "; with --dtype bfloat16 they are bfloat16's bits; else convert it first: x.astype('int32')",
            (b'V', 2) => "; give --dtype bfloat16 if they are bfloat16's bits",
            (b'V', 1) => "; give --dtype float8 or float8_e5m2 if they are float8's bits",
            _ => "",
        };
        format!("it holds {}, which collectives do not take; {TYPES}{advice}", self.name())
    }
}

const TYPES: &str = "they take float64, float32, float16, int64, int32, int8, uint64, uint32, uint8 and bool";

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match (self.size, self.big_endian) {
            (1, _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        write!(f, "{order}{}{}", char::from(self.kind), self.size)
    }
}

fn is_kept_as_integer(data_type: DataType) -> bool {
    matches!(data_type, DataType::Bfloat16 | DataType::Float8E4M3 | DataType::Float8E5M2)
}

/// A position in the dictionary.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    /// The dictionary, which is the whole text but for white space. Its entries have any order.
    fn header(mut self) -> Result<Header, String> {
        let (mut descriptor, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let is_new = match key {
                b"descr" => descriptor.replace(self.descriptor()?).is_none(),
                b"fortran_order" => fortran_order.replace(self.boolean()?).is_none(),
                b"shape" => shape.replace(self.shape()?).is_none(),
                _ => return Err(self.wrong("the entries are descr, fortran_order and shape, and no other")),
            };
            if !is_new {
                return Err(self.wrong("an entry occurs twice"));
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.skip_space();
        if self.at != self.text.len() {
            return Err(self.expected("the end"));
        }
        match (descriptor, fortran_order, shape) {
            (Some(descriptor), Some(fortran_order), Some(shape)) => Ok(Header { descriptor, fortran_order, shape }),
            _ => Err(self.wrong("descr, fortran_order or shape is missing")),
        }
    }

    fn wrong(&self, what: &str) -> String {
        format!("its header is wrong before byte {} of the dictionary: {what}; {WRITES}", self.at)
    }

    fn expected(&self, what: &str) -> String {
        format!("its header is wrong at byte {} of the dictionary, where {what} is expected; {WRITES}", self.at)
    }

    fn skip_space(&mut self) {
        self.at += self.text[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    }

    /// The next byte after white space, which stays.
    fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.text.get(self.at).copied()
    }

    /// Takes a byte, if it is the next.
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.take(byte) { Ok(()) } else { Err(self.expected(&format!("{:?}", char::from(byte)))) }
    }

    /// Takes the bytes that belong together, and gives them.
    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|byte| belongs(**byte)).count();
        self.at += len;
        &rest[..len]
    }

    /// A string in single or double quotes, without escapes.
    fn string(&mut self) -> Result<&'a [u8], String> {
        let Some(quote @ (b'\'' | b'"')) = self.peek() else {
            return Err(self.expected("a string"));
        };
        self.at += 1;
        let string = self.take_while(|byte| byte != quote && byte != b'\\');
        self.expect(quote)?;
        Ok(string)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.skip_space();
        let start = self.at;
        match self.take_while(|byte| byte.is_ascii_alphabetic()) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => {
                self.at = start;
                Err(self.expected("True or False"))
            }
        }
    }

    fn descriptor(&mut self) -> Result<Descriptor, String> {
        if matches!(self.peek(), Some(b'[' | b'(')) {
            return Err(format!("it holds records of several fields, which collectives do not take; {TYPES}"));
        }
        let string = self.string()?;
        let mut parser = Parser { text: string, at: 0 };
        let big_endian = match string.first() {
            Some(b'>') => true,
            // Native is little endian, since the library has no other.
            Some(b'<' | b'|' | b'=') => false,
            _ => return Err(self.wrong("descr is no element type such as '<f4'")),
        };
        parser.at = 1;
        let kind = parser.take_while(|byte| byte.is_ascii_alphabetic());
        let digits = parser.take_while(|byte| byte.is_ascii_digit());
        // Dates have a unit after the digits.
        let has_rest = parser.at != string.len() && !matches!(kind, b"M" | b"m");
        match (kind, number(digits).and_then(|size| u32::try_from(size).ok())) {
            ([kind], Some(size)) if !has_rest => Ok(Descriptor { big_endian, kind: *kind, size }),
            // Python objects have no size.
            (b"O", _) if digits.is_empty() && !has_rest => Ok(Descriptor { big_endian, kind: b'O', size: 0 }),
            _ => Err(self.wrong("descr is no element type such as '<f4'")),
        }
    }

    /// A tuple of numbers. Python 2 put an L behind each.
    fn shape(&mut self) -> Result<Shape, String> {
        let mut dims = Vec::new();
        self.expect(b'(')?;
        while !self.take(b')') {
            self.skip_space();
            let digits = self.take_while(|byte| byte.is_ascii_digit());
            let dim = match number(digits) {
                Some(dim) => dim,
                None if digits.is_empty() => return Err(self.expected("a dimension")),
                None => return Err("a dimension of it is larger than memory can be".to_owned()),
            };
            self.take(b'L');
            if dims.len() == MAX_DIMS {
                return Err(format!("it has more than {MAX_DIMS} dimensions, and a tensor has at most {MAX_DIMS}"));
            }
            dims.push(dim);
            if !self.take(b',') {
                // A tuple of one number has a comma behind it.
                if dims.len() == 1 {
                    return Err(self.expected("','"));
                }
                self.expect(b')')?;
                break;
            }
        }
        Shape::new(&dims).map_err(|error| error.to_string())
    }
}

/// The number of decimal digits. `None` if there are none, or too many.
fn number(digits: &[u8]) -> Option<usize> {
    let add = |number: usize, digit: &u8| number.checked_mul(10)?.checked_add(usize::from(digit - b'0'));
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}
