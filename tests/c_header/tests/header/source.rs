//! Brings Rust source, by bindgen or by hand, into one form: what C sees of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use syn::parse::{ParseStream, Parser};
use syn::{
    Attribute, Expr, Fields, FnArg, ForeignItem, ForeignItemFn, GenericArgument, GenericParam, ImplItem, Item,
    ItemStruct, Lit, Meta, Pat, PathArguments, PathSegment, PointerMutability, ReturnType, Signature, Type, UnOp,
};

/// The declarations of some files.
#[derive(Default)]
pub struct Source {
    structures: BTreeMap<String, ItemStruct>,
    aliases: HashMap<String, Type>,
    /// The C names of handles, by the objects' names.
    handles: HashMap<String, String>,
    /// Constants, by the type that they belong to, if any, and their own name.
    constants: BTreeMap<(String, String), i64>,
    signatures: Vec<Signature>,
    /// The C names of structures that have another name in Rust.
    renamed: HashMap<String, String>,
    /// The source without white space.
    text: String,
}

/// The C types that generic parameters stand for.
type Generics = HashMap<String, String>;

/// Size and alignment of a structure, and the offsets of its fields.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    size: usize,
    align: usize,
    offsets: Vec<usize>,
}

impl Layout {
    /// Whether the fields of `other` are the first of these.
    pub fn begins_with(&self, other: &Layout) -> bool {
        self.align == other.align && self.offsets.starts_with(&other.offsets)
    }
}

impl Source {
    pub fn parse(files: impl IntoIterator<Item = String>) -> Self {
        let mut source = Source::default();
        for file in files {
            source.text.extend(file.chars().filter(|c| !c.is_whitespace()));
            for item in syn::parse_file(&file).expect("Rust").items {
                source.item(item);
            }
        }
        source
    }

    fn item(&mut self, item: Item) {
        match item {
            Item::Struct(item) => drop(self.structures.insert(item.ident.to_string(), item)),
            Item::Type(item) => drop(self.aliases.insert(item.ident.to_string(), *item.ty)),
            Item::Const(item) => self.constant_item("", &item.ident.to_string(), &item.expr),
            Item::Enum(item) => {
                for variant in item.variants {
                    if let Some((_, number)) = &variant.discriminant {
                        self.constant_item(&item.ident.to_string(), &variant.ident.to_string(), number);
                    }
                }
            }
            Item::Fn(item) if item.attrs.iter().any(is_no_mangle) => {
                let abi = item.sig.abi.as_ref().and_then(|abi| abi.name.as_ref()).map(|name| name.value());
                assert_eq!(abi.as_deref(), Some("C"), "{}", item.sig.ident);
                self.signatures.push(item.sig);
            }
            Item::ForeignMod(item) => self.signatures.extend(item.items.into_iter().filter_map(|item| match item {
                ForeignItem::Fn(function) => Some(function.sig),
                _ => None,
            })),
            Item::Macro(item) if item.mac.path.is_ident("functions") => {
                let functions = |input: ParseStream<'_>| {
                    while !input.is_empty() {
                        self.signatures.push(input.parse::<ForeignItemFn>()?.sig);
                    }
                    Ok(())
                };
                functions.parse2(item.mac.tokens).expect("functions");
            }
            Item::Macro(item) if item.mac.path.is_ident("handles") => {
                for handle in item.mac.tokens.to_string().split_terminator(';') {
                    let (name, structure) = handle.split_once('=').expect("a handle");
                    let pointer = syn::parse_str(&format!("*mut {structure}")).expect("a type");
                    self.aliases.insert(name.trim().to_owned(), pointer);
                }
            }
            Item::Impl(item) => {
                let owner = segment(&item.self_ty).map(|segment| segment.ident.to_string()).unwrap_or_default();
                for item in item.items {
                    let ImplItem::Const(constant) = item else { continue };
                    match (&constant.expr, constant.ident.to_string().as_str()) {
                        (Expr::Lit(literal), "TYPE") => {
                            let Lit::Str(name) = &literal.lit else { panic!("the name of a handle's type") };
                            let name = name.value().strip_suffix("_t").expect("the name of a type").to_owned();
                            self.handles.insert(owner.clone(), name);
                        }
                        (number, name) => self.constant_item(&owner, name, number),
                    }
                }
            }
            _ => {}
        }
    }

    fn constant_item(&mut self, owner: &str, name: &str, number: &Expr) {
        if let Some(number) = self.number(number) {
            self.constants.insert((owner.to_owned(), name.to_owned()), number);
        }
    }

    /// The value of a plain expression: a literal, another constant, or either in a newtype.
    fn number(&self, expression: &Expr) -> Option<i64> {
        match expression {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(number) => number.base10_parse().ok(),
                _ => None,
            },
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => self.number(&unary.expr).map(|number| -number),
            Expr::Paren(inner) => self.number(&inner.expr),
            Expr::Call(call) if call.args.len() == 1 => self.number(&call.args[0]),
            Expr::Path(path) => self.constants.get(&(String::new(), path.path.get_ident()?.to_string())).copied(),
            _ => None,
        }
    }

    /// Sets a structure's name in C.
    pub fn rename(&mut self, rust: &str, c: &str) {
        assert!(self.structures.contains_key(rust), "there is no {rust}");
        self.renamed.insert(rust.to_owned(), c.to_owned());
    }

    /// A type as C sees it.
    fn c_type(&self, ty: &Type, generics: &Generics) -> String {
        match ty {
            Type::Ptr(pointer) => {
                let what = if matches!(pointer.mutability, PointerMutability::Mut(_)) { "mut" } else { "const" };
                format!("*{what} {}", self.c_type(&pointer.elem, generics))
            }
            Type::Array(array) => {
                let len = self.number(&array.len).expect("a plain length");
                format!("[{}; {len}]", self.c_type(&array.elem, generics))
            }
            Type::FnPtr(function) => {
                let inputs: Vec<String> =
                    function.inputs.iter().map(|input| self.c_type(&input.ty, generics)).collect();
                format!("fn({}){}", inputs.join(", "), self.returned(&function.output))
            }
            _ => self.named(segment(ty).expect("a type that C has"), generics),
        }
    }

    fn named(&self, segment: &PathSegment, generics: &Generics) -> String {
        let name = segment.ident.to_string();
        let arguments: Vec<&Type> = match &segment.arguments {
            PathArguments::AngleBracketed(arguments) => arguments.args.iter().filter_map(type_argument).collect(),
            _ => Vec::new(),
        };
        if let Some(known) = generics.get(&name) {
            return known.clone();
        }
        if let Some(alias) = self.aliases.get(&name) {
            return self.c_type(alias, generics);
        }
        match (name.as_str(), arguments.as_slice()) {
            // A function pointer that may be NULL.
            ("Option", [function]) => return self.c_type(function, generics),
            ("Handle", [object]) => {
                let object = crate::source::segment(object).expect("an object").ident.to_string();
                return format!("*mut {}", self.handles[&object]);
            }
            _ => {}
        }
        let Some(structure) = self.structures.get(&name) else { return name };
        if !has_repr(structure, "transparent") {
            assert!(has_repr(structure, "C"), "{name} is neither transparent nor of C");
            return self.renamed.get(&name).unwrap_or(&name).clone();
        }
        let parameters = structure.generics.params.iter().filter_map(|parameter| match parameter {
            GenericParam::Type(parameter) => Some(parameter.ident.to_string()),
            _ => None,
        });
        let inner = parameters.zip(arguments).map(|(name, ty)| (name, self.c_type(ty, generics))).collect();
        self.c_type(&structure.fields.iter().next().expect("a field").ty, &inner)
    }

    fn returned(&self, output: &ReturnType) -> String {
        match output {
            ReturnType::Default => String::new(),
            ReturnType::Type(_, ty) => format!(" -> {}", self.c_type(ty, &Generics::new())),
        }
    }

    /// All functions: names, and the names and types of their parameters.
    pub fn functions(&self) -> BTreeMap<String, String> {
        let parameter = |argument: &FnArg| {
            let FnArg::Typed(parameter) = argument else { panic!("C has no self") };
            let Pat::Ident(name) = &*parameter.pat else { panic!("a name") };
            format!("{}: {}", name.ident, self.c_type(&parameter.ty, &Generics::new()))
        };
        let signature = |signature: &Signature| {
            let parameters: Vec<String> = signature.inputs.iter().map(parameter).collect();
            (signature.ident.to_string(), format!("({}){}", parameters.join(", "), self.returned(&signature.output)))
        };
        self.signatures.iter().map(signature).collect()
    }

    /// A type by its name, as C sees it.
    pub fn named_type(&self, name: &str) -> String {
        self.c_type(&syn::parse_str(name).expect("a type"), &Generics::new())
    }

    pub fn structures(&self) -> impl Iterator<Item = &str> {
        self.structures.keys().map(String::as_str)
    }

    /// Whether bindgen knows no fields of a structure.
    pub fn is_opaque(&self, name: &str) -> bool {
        self.fields(name).iter().any(|(name, _)| name == "_unused")
    }

    /// The names and types of a structure's fields.
    pub fn fields(&self, c_name: &str) -> Vec<(String, String)> {
        let rust = self.renamed.iter().find(|(_, c)| *c == c_name).map_or(c_name, |(rust, _)| rust);
        let structure = &self.structures[rust];
        assert!(has_repr(structure, "C"), "{rust} is not of C");
        let Fields::Named(fields) = &structure.fields else { panic!("{rust} has no names") };
        let field = |field: &syn::Field| {
            let name = field.ident.as_ref().expect("a name").to_string();
            (name, self.c_type(&field.ty, &Generics::new()))
        };
        fields.named.iter().map(field).collect()
    }

    /// The layout that repr(C) gives a structure on a 64-bit machine.
    pub fn layout(&self, c_name: &str) -> Layout {
        let mut layout = Layout { size: 0, align: 1, offsets: Vec::new() };
        for (_, ty) in self.fields(c_name) {
            let (size, align) = self.size_and_align(&ty);
            let offset = layout.size.next_multiple_of(align);
            layout.offsets.push(offset);
            layout.size = offset + size;
            layout.align = layout.align.max(align);
        }
        layout.size = layout.size.next_multiple_of(layout.align);
        layout
    }

    fn size_and_align(&self, ty: &str) -> (usize, usize) {
        if let Some((element, len)) = ty.strip_prefix('[').and_then(|ty| ty.strip_suffix(']')?.rsplit_once("; ")) {
            let (size, align) = self.size_and_align(element);
            return (size * len.parse::<usize>().expect("a length"), align);
        }
        match ty {
            "u8" | "c_char" => (1, 1),
            "i32" | "u32" | "c_int" | "c_uint" => (4, 4),
            "i64" | "u64" | "usize" => (8, 8),
            pointer if pointer.starts_with('*') || pointer.starts_with("fn(") => (8, 8),
            structure => {
                let Layout { size, align, .. } = self.layout(structure);
                (size, align)
            }
        }
    }

    /// The layout that clang computed. bindgen asserts it beside the structure.
    pub fn asserted_layout(&self, name: &str) -> Layout {
        let asserted = |what: String| -> usize {
            let after = self.text.split_once(&what).unwrap_or_else(|| panic!("bindgen asserts no {what}")).1;
            let number = after.split_once("-").and_then(|(_, rest)| rest.split_once("usize")).expect("a number").0;
            number.parse().expect("a number")
        };
        let offset = |(field, _): &(String, String)| asserted(format!("\"Offsetoffield:{name}::{field}\""));
        Layout {
            size: asserted(format!("\"Sizeof{name}\"")),
            align: asserted(format!("\"Alignmentof{name}\"")),
            offsets: self.fields(name).iter().map(offset).collect(),
        }
    }

    /// The constants that belong to no type.
    pub fn constants(&self) -> impl Iterator<Item = (&str, i64)> {
        let free = self.constants.iter().filter(|((owner, _), _)| owner.is_empty());
        free.map(|((_, name), number)| (name.as_str(), *number))
    }

    pub fn constant(&self, owner: &str, name: &str) -> i64 {
        let key = (owner.to_owned(), name.to_owned());
        *self.constants.get(&key).unwrap_or_else(|| panic!("there is no {owner}::{name} in Rust"))
    }

    /// All values of a type's constants.
    pub fn constants_of(&self, owner: &str) -> BTreeSet<i64> {
        self.constants.iter().filter(|((of, _), _)| of == owner).map(|(_, number)| *number).collect()
    }
}

fn segment(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

fn type_argument(argument: &GenericArgument) -> Option<&Type> {
    match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

/// `#[unsafe(no_mangle)]`.
fn is_no_mangle(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("unsafe") && list.tokens.to_string() == "no_mangle")
}

fn has_repr(structure: &ItemStruct, wanted: &str) -> bool {
    structure.attrs.iter().any(|attribute| {
        matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("repr") && list.tokens.to_string() == wanted)
    })
}
