//! A form in plain HTML from a JSON Schema, and typed JSON back from what a browser sends: what the one-time page needs to
//! work without a script.

use maud::{Markup, html};
use serde_json::{Map, Value};

/// Values deeper than this are written as JSON.
const DEEPEST: usize = 3;
/// Texts that may be longer than this get several lines.
const LONG: u64 = 200;

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// JSON pointer into the form.
    pub pointer: String,
    pub detail: String,
}

/// What was typed, by the pointer of its field. A box that is not ticked is not sent.
pub type Typed = Vec<(String, String)>;

/// How a value is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Choice,
    Group,
    YesNo,
    Number,
    Text,
    Lines,
    Json,
}

/// One value that is asked for.
struct Field<'a> {
    schema: &'a Value,
    pointer: String,
    name: &'a str,
    required: bool,
    depth: usize,
}

impl<'a> Field<'a> {
    fn whole(schema: &'a Value) -> Field<'a> {
        Field { schema, pointer: String::new(), name: "", required: true, depth: 0 }
    }

    fn kind(&self) -> Kind {
        let is = |name: &str| match &self.schema["type"] {
            Value::String(one) => one == name,
            // A type that may also be null is asked for like the other one.
            Value::Array(many) => many.iter().filter(|one| *one != "null").collect::<Vec<_>>() == [name],
            _ => false,
        };
        let list_of_texts = || self.schema["items"]["type"] == "string" && self.schema["items"]["enum"].is_null();
        match () {
            () if self.schema["enum"].is_array() => Kind::Choice,
            () if is("object") && self.schema["properties"].is_object() && self.depth < DEEPEST => Kind::Group,
            () if is("boolean") => Kind::YesNo,
            () if is("integer") || is("number") => Kind::Number,
            () if is("string") => Kind::Text,
            () if is("array") && list_of_texts() => Kind::Lines,
            () => Kind::Json,
        }
    }

    fn fields(&self) -> Vec<Field<'a>> {
        let required: Vec<&str> =
            self.schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = self.schema["properties"].as_object().into_iter().flatten();
        properties
            .map(|(name, schema)| Field {
                schema,
                pointer: format!("{}/{}", self.pointer, name.replace('~', "~0").replace('/', "~1")),
                name,
                required: required.contains(&name.as_str()),
                depth: self.depth + 1,
            })
            .collect()
    }

    fn title(&self) -> String {
        if let Some(title) = self.schema["title"].as_str() {
            return title.to_owned();
        }
        let words = self.name.replace('_', " ");
        let mut letters = words.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
    }

    /// What stands in the field: what was typed, else what the schema starts with.
    fn text(&self, typed: Option<&Typed>) -> String {
        if let Some(typed) = typed {
            return typed_at(typed, &self.pointer).unwrap_or_default().to_owned();
        }
        match (&self.schema["default"], self.kind()) {
            (Value::Null, _) => String::new(),
            (Value::String(text), Kind::Text) => text.clone(),
            (Value::Array(lines), Kind::Lines) => lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"),
            (value, _) => value.to_string(),
        }
    }
}

fn typed_at<'a>(typed: &'a Typed, pointer: &str) -> Option<&'a str> {
    typed.iter().find(|(known, _)| known == pointer).map(|(_, text)| text.as_str())
}

/// The name of a field in what the browser sends.
fn name(pointer: &str) -> String {
    format!("form{pointer}")
}

/// The pairs that a browser sent, as far as they are fields of the form.
pub fn typed(pairs: &[(String, String)]) -> Typed {
    let of_form = |(name, text): &(String, String)| {
        let pointer = name.strip_prefix("form").filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
        // Browsers end lines as the post does.
        Some((pointer.to_owned(), text.replace("\r\n", "\n")))
    };
    pairs.iter().filter_map(of_form).collect()
}

/// The fields, with what was typed and what is wrong with it.
pub fn render(schema: &Value, typed: Option<&Typed>, faults: &[Fault]) -> Markup {
    field(&Field::whole(schema), typed, faults)
}

fn field(of: &Field<'_>, typed: Option<&Typed>, faults: &[Fault]) -> Markup {
    if of.kind() == Kind::Group {
        let fields = of.fields();
        let inner = html! {
            @if let Some(note) = of.schema["description"].as_str() { p.note { (note) } }
            @for one in &fields { (field(one, typed, faults)) }
        };
        return html! {
            @if of.name.is_empty() { (inner) } @else { fieldset { legend { (of.title()) } (inner) } }
        };
    }
    let id = format!("field{}", of.pointer.replace('/', "-"));
    let own: Vec<&Fault> = faults.iter().filter(|fault| is_of(fault, &of.pointer)).collect();
    let note = of.schema["description"].as_str();
    let described = [(note.is_some(), "note"), (!own.is_empty(), "fault")];
    let described: Vec<String> =
        described.iter().filter(|(there, _)| *there).map(|(_, what)| format!("{id}-{what}")).collect();
    html! {
        div.field {
            label for=(id) {
                @if of.name.is_empty() { "Form" } @else { (of.title()) }
                @if !of.required { span.faint { " optional" } }
            }
            @if let Some(note) = note { p.note id={ (id) "-note" } { (note) } }
            (control(of, &id, typed, (!own.is_empty()).then_some("true"), &described.join(" ")))
            @if !own.is_empty() {
                p.fault id={ (id) "-fault" } { @for fault in own { (fault.detail) " " } }
            }
        }
    }
}

/// A fault inside of a value that is one field shows at that field.
fn is_of(fault: &Fault, pointer: &str) -> bool {
    fault
        .pointer
        .strip_prefix(pointer)
        .is_some_and(|rest| rest.is_empty() || (rest.starts_with('/') && !pointer.is_empty()))
}

fn control(of: &Field<'_>, id: &str, typed: Option<&Typed>, invalid: Option<&str>, described: &str) -> Markup {
    let (name, text) = (name(&of.pointer), of.text(typed));
    let described = (!described.is_empty()).then_some(described);
    let area = |rows: u32, code: bool, hint: Option<&str>| {
        html! {
            textarea id=(id) name=(name) rows=(rows) class=[code.then_some("code")] spellcheck=[code.then_some("false")]
                placeholder=[hint] aria-invalid=[invalid] aria-describedby=[described] { "\n" (text) }
        }
    };
    let select = |options: Vec<(String, String)>| {
        html! {
            select id=(id) name=(name) aria-invalid=[invalid] aria-describedby=[described] {
                option value="" { @if of.required { "Choose…" } @else { "–" } }
                @for (value, label) in options { option value=(value) selected[value == text] { (label) } }
            }
        }
    };
    let input = |kind: &str, mode: Option<&str>| {
        html! {
            input id=(id) name=(name) type=(kind) inputmode=[mode] value=(text) autocomplete="off"
                aria-invalid=[invalid] aria-describedby=[described];
        }
    };
    match of.kind() {
        Kind::Choice => {
            let values = of.schema["enum"].as_array().into_iter().flatten();
            let label = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            select(values.map(|value| (value.to_string(), label(value))).collect())
        }
        Kind::YesNo => select(vec![("true".into(), "Yes".into()), ("false".into(), "No".into())]),
        Kind::Number => input("text", Some("decimal")),
        Kind::Text if of.schema["maxLength"].as_u64().is_some_and(|most| most > LONG) || text.contains('\n') => {
            area(4, false, None)
        }
        Kind::Text => match of.schema["format"].as_str() {
            Some("textarea") => area(4, false, None),
            Some("email") => input("email", None),
            Some("date") => input("date", None),
            Some("uri") => input("url", None),
            _ => input("text", None),
        },
        Kind::Lines => area(3, false, Some("one on each line")),
        Kind::Group | Kind::Json => area(6, true, Some("as JSON")),
    }
}

/// Whether anything was typed that did not stand there before.
pub fn is_touched(schema: &Value, typed: &Typed) -> bool {
    fn touched(of: &Field<'_>, typed: &Typed) -> bool {
        match of.kind() {
            Kind::Group => of.fields().iter().any(|field| touched(field, typed)),
            _ => typed_at(typed, &of.pointer).unwrap_or_default() != of.text(None),
        }
    }
    touched(&Field::whole(schema), typed)
}

/// Typed JSON from what was typed. What is not there at all is named here; the schema judges the rest.
pub fn read(schema: &Value, typed: &Typed) -> Result<Value, Vec<Fault>> {
    let mut faults = Vec::new();
    let value = value(&Field::whole(schema), typed, &mut faults);
    if faults.is_empty() { Ok(value.unwrap_or(Value::Null)) } else { Err(faults) }
}

fn value(of: &Field<'_>, typed: &Typed, faults: &mut Vec<Fault>) -> Option<Value> {
    let kind = of.kind();
    if kind == Kind::Group {
        let mut object = Map::new();
        for field in of.fields() {
            if let Some(one) = value(&field, typed, faults) {
                object.insert(field.name.to_owned(), one);
            }
        }
        return (of.required || !object.is_empty()).then_some(Value::Object(object));
    }
    let mut wrong = |detail: &str| {
        faults.push(Fault { pointer: of.pointer.clone(), detail: detail.into() });
        None
    };
    let text = typed_at(typed, &of.pointer).unwrap_or_default();
    if text.trim().is_empty() {
        return if of.required { wrong("This is needed.") } else { None };
    }
    match kind {
        Kind::Choice | Kind::YesNo => match serde_json::from_str(text) {
            Ok(value) => Some(value),
            Err(_) => wrong("Choose one."),
        },
        Kind::Number => match serde_json::from_str::<serde_json::Number>(text.trim()) {
            Ok(number) => Some(Value::Number(number)),
            Err(_) => wrong("Give a number."),
        },
        Kind::Lines => {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            Some(lines.map(Value::from).collect())
        }
        Kind::Text => Some(Value::from(text)),
        Kind::Group | Kind::Json => match serde_json::from_str(text) {
            Ok(value) => Some(value),
            Err(error) => wrong(&format!("This is not JSON: {error}.")),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "required": ["amount", "ok", "address"],
            "properties": {
                "amount": { "type": "integer", "minimum": 1, "description": "In euros" },
                "ok": { "type": "boolean" },
                "why": { "type": ["string", "null"] },
                "colour": { "enum": ["red", 7, null], "default": "red" },
                "tags": { "type": "array", "items": { "type": "string" } },
                "address": { "type": "object", "required": ["city"], "properties": { "city": { "type": "string" } } },
                "more": {},
            },
        })
    }

    fn of(pairs: &[(&str, &str)]) -> Typed {
        typed(&pairs.iter().map(|(name, text)| (format!("form{name}"), (*text).to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_typed_becomes_typed_json() {
        let typed = of(&[
            ("/amount", " 12 "),
            ("/ok", "false"),
            ("/why", "it is\r\nfine"),
            ("/colour", "7"),
            ("/tags", "a\r\n\r\n b "),
            ("/address/city", "Oslo"),
            ("/more", "{\"n\":[1]}"),
        ]);
        let expected = json!({
            "amount": 12, "ok": false, "why": "it is\nfine", "colour": 7, "tags": ["a", "b"],
            "address": { "city": "Oslo" }, "more": { "n": [1] },
        });
        assert_eq!(read(&schema(), &typed), Ok(expected));
    }

    #[test]
    fn every_fault_is_found_at_its_field() {
        let faults = read(&schema(), &of(&[("/amount", "many"), ("/more", "{")])).unwrap_err();
        let places: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(places, ["/amount", "/ok", "/address/city", "/more"]);
    }

    #[test]
    fn what_was_typed_stays_and_is_text() {
        let typed = of(&[("/why", "\"><script>x</script>"), ("/amount", "many")]);
        let faults = [Fault { pointer: "/amount".into(), detail: "Give a <number>.".into() }];
        let html = render(&schema(), Some(&typed), &faults).into_string();
        assert!(html.contains("value=\"many\"") && html.contains("aria-invalid=\"true\""), "{html}");
        assert!(html.contains("&quot;&gt;&lt;script&gt;") && !html.contains("<script"), "{html}");
        assert!(html.contains("Give a &lt;number&gt;."), "{html}");
    }

    #[test]
    fn only_what_differs_from_the_start_is_touched() {
        assert!(!is_touched(&schema(), &of(&[("/colour", "\"red\""), ("/amount", "")])));
        assert!(is_touched(&schema(), &of(&[("/colour", "\"red\""), ("/amount", "1")])));
    }

    #[test]
    fn any_schema_has_a_form() {
        for schema in [json!(true), json!({}), json!({ "type": "string" }), json!({ "oneOf": [{ "type": "string" }] })]
        {
            assert!(render(&schema, None, &[]).into_string().contains("name=\"form\""));
        }
    }
}
