//! `#[derive(Wire)]`: a value as its fields, one after another.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DataEnum, DataStruct, DeriveInput, Error, Field, Fields, Generics, Ident,
    Index, Path, Result, Type, parse_quote,
};

pub(crate) fn expand(input: DeriveInput) -> Result<TokenStream> {
    let message = "`#[wire(…)]` is for fields: `#[wire(serde)]` or `#[wire(skip)]`";
    refuse_attribute(&input.attrs, message)?;
    let name = &input.ident;
    let Bodies {
        encode,
        decode,
        parts,
    } = match &input.data {
        Data::Struct(data) => Bodies::of_struct(data)?,
        Data::Enum(data) => Bodies::of_enum(name, data)?,
        Data::Union(data) => {
            let message = "`Wire` can be derived for structs and enums: nobody knows which field of a union is set";
            return Err(Error::new(data.union_token.span(), message));
        }
    };
    let generics = bounded(input.generics, &parts);
    let (for_impl, for_type, bounds) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #for_impl ::datapipes::Wire for #name #for_type #bounds {
            fn encode<'wire>(&'wire self, to: &mut ::datapipes::Writer<'wire>) -> ::datapipes::Result<()> {
                let _ = &to;
                #encode
                #[allow(unreachable_code, reason = "an enum without variants has no values")]
                ::std::result::Result::Ok(())
            }

            fn decode(from: &mut ::datapipes::Reader<'_>) -> ::datapipes::Result<Self> {
                #decode
            }
        }
    })
}

fn refuse_attribute(attributes: &[Attribute], message: &str) -> Result<()> {
    match attributes.iter().find(|it| it.path().is_ident("wire")) {
        Some(attribute) => Err(Error::new_spanned(attribute, message)),
        None => Ok(()),
    }
}

/// Adds the bounds for parameters, and for fields that go through serde.
fn bounded(mut generics: Generics, parts: &[Part]) -> Generics {
    let wire: Path = parse_quote!(::datapipes::Wire);
    let params: Vec<Ident> = generics
        .type_params()
        .map(|param| param.ident.clone())
        .collect();
    let bounds = &mut generics.make_where_clause().predicates;
    for param in params {
        // A parameter that occurs only in skipped fields must be `Wire`, too: that rule is simpler.
        bounds.push(parse_quote!(#param: #wire));
    }
    for part in parts.iter().filter(|part| part.serde) {
        let kind = &part.kind;
        bounds.push(parse_quote!(#kind: ::datapipes::derived::Serial));
    }
    generics
}

/// Bodies of the methods, and all fields that they use.
struct Bodies {
    encode: TokenStream,
    decode: TokenStream,
    parts: Vec<Part>,
}

impl Bodies {
    fn of_struct(data: &DataStruct) -> Result<Self> {
        let fields = Parts::new(&data.fields)?;
        let (pattern, encode) = (fields.pattern(), fields.encode());
        let decode = fields.decode(&quote!(Self));
        // Every value takes a byte.
        let (put, take) = match fields.travel() {
            true => (quote!(), quote!()),
            false => (
                quote!(::datapipes::Wire::encode(&(), to)?;),
                quote!(<() as ::datapipes::Wire>::decode(from)?;),
            ),
        };
        Ok(Bodies {
            encode: quote!(let Self #pattern = self; #put #encode),
            decode: quote!(#take #decode),
            parts: fields.list,
        })
    }

    fn of_enum(name: &Ident, data: &DataEnum) -> Result<Self> {
        let (mut puts, mut takes, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (number, variant) in data.variants.iter().enumerate() {
            refuse_attribute(
                &variant.attrs,
                "`#[wire(…)]` is for fields, not for variants",
            )?;
            let (ident, number) = (&variant.ident, number as u64);
            let fields = Parts::new(&variant.fields)?;
            let (pattern, encode) = (fields.pattern(), fields.encode());
            let decode = fields.decode(&quote!(Self::#ident));
            puts.push(quote!(Self::#ident #pattern => { to.number(#number); #encode }));
            takes.push(quote!(#number => { #decode }));
            parts.extend(fields.list);
        }
        let words = name.to_string();
        let encode = match puts[..] {
            [] => quote!(match *self {}),
            _ => quote!(match self { #(#puts)* }),
        };
        let decode = quote! {
            match from.number()? {
                #(#takes)*
                number => ::std::result::Result::Err(::datapipes::derived::no_variant(#words, number)),
            }
        };
        Ok(Bodies {
            encode,
            decode,
            parts,
        })
    }
}

/// Fields of a struct or of a variant.
struct Parts {
    list: Vec<Part>,
}

struct Part {
    member: TokenStream,
    variable: Ident,
    kind: Type,
    serde: bool,
    skip: bool,
}

impl Parts {
    fn new(fields: &Fields) -> Result<Self> {
        Ok(Parts {
            list: fields
                .iter()
                .enumerate()
                .map(Part::new)
                .collect::<Result<_>>()?,
        })
    }

    /// Returns true if any field is written.
    fn travel(&self) -> bool {
        self.list.iter().any(|part| !part.skip)
    }

    /// Returns a pattern that takes a reference apart; skipped fields are left out.
    fn pattern(&self) -> TokenStream {
        let parts = self.list.iter().filter(|part| !part.skip);
        let parts = parts.map(
            |Part {
                 member, variable, ..
             }| quote!(#member: #variable,),
        );
        quote!({ #(#parts)* .. })
    }

    fn encode(&self) -> TokenStream {
        let parts = self.list.iter().filter(|part| !part.skip);
        parts
            .map(|Part { variable, kind, serde, .. }| match serde {
                true => quote_spanned!(kind.span()=> ::datapipes::derived::encode_serde(#variable, to)?;),
                false => quote_spanned!(kind.span()=> <#kind as ::datapipes::Wire>::encode(#variable, to)?;),
            })
            .collect()
    }

    fn decode(&self, constructor: &TokenStream) -> TokenStream {
        let parts = self.list.iter().map(|Part { member, kind, serde, skip, .. }| {
            let value = match (skip, serde) {
                (true, _) => quote_spanned!(kind.span()=> <#kind as ::std::default::Default>::default()),
                (_, true) => quote_spanned!(kind.span()=> ::datapipes::derived::decode_serde::<#kind>(from)?),
                _ => quote_spanned!(kind.span()=> <#kind as ::datapipes::Wire>::decode(from)?),
            };
            quote!(#member: #value,)
        });
        quote!(::std::result::Result::Ok(#constructor { #(#parts)* }))
    }
}

impl Part {
    fn new((place, field): (usize, &Field)) -> Result<Self> {
        let member = match &field.ident {
            Some(ident) => quote!(#ident),
            None => {
                let index = Index::from(place);
                quote!(#index)
            }
        };
        let (mut serde, mut skip) = (false, false);
        for attribute in field
            .attrs
            .iter()
            .filter(|attribute| attribute.path().is_ident("wire"))
        {
            attribute.parse_nested_meta(|meta| {
                match () {
                    () if meta.path.is_ident("serde") => serde = true,
                    () if meta.path.is_ident("skip") => skip = true,
                    () => return Err(meta.error("expected `serde` or `skip`")),
                }
                Ok(())
            })?;
            if !serde && !skip {
                return Err(Error::new_spanned(
                    attribute,
                    "say `#[wire(serde)]` or `#[wire(skip)]`",
                ));
            }
        }
        if serde && skip {
            return Err(Error::new_spanned(
                field,
                "say one of `serde` and `skip`: what is skipped is not written",
            ));
        }
        let variable = format_ident!("field_{place}", span = Span::mixed_site());
        Ok(Part {
            member,
            variable,
            kind: field.ty.clone(),
            serde,
            skip,
        })
    }
}
