//! A small XML parser for the responses of moto: texts by their tag, or elements in a tree.

use anyhow::{Context, Result, ensure};

/// An element without its attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Element {
    /// The element's name.
    pub name: String,
    /// The text in the element, without the text of its children.
    pub text: String,
    /// The elements directly in it, in order.
    pub children: Vec<Element>,
}

impl Element {
    /// Parses a document; returns its root element.
    ///
    /// # Errors
    /// If an element is not closed correctly.
    pub fn parse(xml: &str) -> Result<Self> {
        let mut stack = vec![Self::default()];
        let mut rest = xml;
        while let Some((text, tagged)) = rest.split_once('<') {
            let (tag, after) = tagged.split_once('>').context("a tag that does not end")?;
            rest = after;
            let current = stack.last_mut().context("more closing tags than opening tags")?;
            current.text.push_str(unescape(text).trim());
            if tag.starts_with(['?', '!']) {
                continue;
            }
            if !tag.starts_with('/') {
                let name = tag.trim_end_matches('/').split_whitespace().next().unwrap_or_default().to_owned();
                stack.push(Self { name, ..Self::default() });
            }
            if tag.starts_with('/') || tag.ends_with('/') {
                let ended = stack.pop().context("more closing tags than opening tags")?;
                let name = tag.trim_start_matches('/');
                ensure!(tag.ends_with('/') || ended.name == name, "<{}> is closed by </{name}>", ended.name);
                stack.last_mut().context("more closing tags than opening tags")?.children.push(ended);
            }
        }
        let document = stack.pop().filter(|_| stack.is_empty()).context("an element is not closed")?;
        document.children.into_iter().next().context("no element")
    }

    /// Returns an element with a text and no children.
    pub(crate) fn leaf(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.to_owned(), children: Vec::new() }
    }

    /// Formats the document.
    pub(crate) fn write(&self) -> String {
        let children: String = self.children.iter().map(Self::write).collect();
        format!("<{0}>{1}{children}</{0}>", self.name, escape(&self.text))
    }

    /// Returns the first element at a path of names, to be changed.
    pub(crate) fn find_mut(&mut self, path: &str) -> Option<&mut Self> {
        path.split('/').try_fold(self, |element, name| element.children.iter_mut().find(|child| child.name == name))
    }

    /// Returns the elements at a path of names below this one, such as `Instances/item`.
    pub fn all(&self, path: &str) -> Vec<&Self> {
        path.split('/').fold(vec![self], |found, name| {
            found.into_iter().flat_map(|element| &element.children).filter(|child| child.name == name).collect()
        })
    }

    /// Returns the text of the first element at a path; empty if it does not exist.
    pub fn text(&self, path: &str) -> &str {
        self.all(path).first().map_or("", |element| &element.text)
    }

    /// Returns the texts of all elements at a path.
    pub fn texts(&self, path: &str) -> Vec<&str> {
        self.all(path).into_iter().map(|element| element.text.as_str()).collect()
    }
}

fn unescape(text: &str) -> String {
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

fn escape(text: &str) -> String {
    [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")]
        .iter()
        .fold(text.to_owned(), |text, (plain, escaped)| text.replace(plain, escaped))
}

/// Returns the texts of all elements with that name, in order.
pub(crate) fn texts(xml: &str, tag: &str) -> Vec<String> {
    let (open_tag, close_tag) = (format!("<{tag}>"), format!("</{tag}>"));
    let found = xml.split(&open_tag).skip(1).filter_map(|rest| rest.split_once(&close_tag));
    found.map(|(text, _)| text.trim().to_owned()).collect()
}

/// Returns the response with routes to this instance as blackholes, like AWS after its termination.
pub(crate) fn blackhole(xml: &str, instance: &str) -> String {
    let marker = format!("<instanceId>{instance}</instanceId>");
    let mut parts = xml.split(&marker);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (route, rest) = part.split_at(part.find("</item>").unwrap_or(part.len()));
        format!("{text}{}{rest}", route.replacen("<state>active</state>", "<state>blackhole</state>", 1))
    })
}

/// Returns the response with this target in its first checks, like AWS soon after its registration.
pub(crate) fn in_first_checks(xml: &str, target: &str) -> String {
    let initial = "<State>initial</State><Reason>Elb.InitialHealthChecking</Reason>\
                   <Description>Initial health checks in progress</Description>";
    replace_health(xml, &[format!("<Id>{target}</Id>")], initial)
}

/// Returns the response with this target unhealthy, like AWS for a target that it does not reach.
pub(crate) fn unreached(xml: &str, target: &str, port: &str) -> String {
    let unhealthy =
        "<State>unhealthy</State><Reason>Target.Timeout</Reason><Description>Request timed out</Description>";
    replace_health(xml, &[format!("<Id>{target}</Id>"), format!("<Port>{port}</Port>")], unhealthy)
}

/// Returns the response with `health` instead of the state `healthy` in each member that contains all markers.
fn replace_health(xml: &str, markers: &[String], health: &str) -> String {
    let parts = xml.split("<member>").enumerate().map(|(number, part)| {
        let open_tag = if number == 0 { "" } else { "<member>" };
        if markers.iter().all(|marker| part.contains(marker)) {
            format!("{open_tag}{}", part.replacen("<State>healthy</State>", health, 1))
        } else {
            format!("{open_tag}{part}")
        }
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_target_is_in_its_first_checks() {
        let item = |id: &str, state: &str| format!("<member><State>{state}</State><Id>{id}</Id></member>");
        let response = in_first_checks(&format!("<a>{}{}</a>", item("1", "healthy"), item("2", "healthy")), "1");
        assert!(response.starts_with("<a><member><State>initial</State><Reason>Elb."), "{response}");
        assert!(response.ends_with(&format!("{}</a>", item("2", "healthy"))), "{response}");
    }

    #[test]
    fn texts_are_in_order() {
        let xml = "<a><id>1</id><b><id> 2 </id></b><idle>3</idle><id/></a>";
        assert_eq!(texts(xml, "id"), ["1", "2"]);
        assert_eq!(texts(xml, "c"), Vec::<String>::new());
    }

    #[test]
    fn elements_are_found_by_their_paths() {
        let xml =
            "<?xml version='1.0'?>\n<r xmlns=\"x\"><l><m><k>a</k><v>1 &lt; &amp;lt;</v></m><m><k>b</k><v/></m></l></r>";
        let root = Element::parse(xml).unwrap();
        assert_eq!((root.name.as_str(), root.texts("l/m/k")), ("r", vec!["a", "b"]));
        let members = root.all("l/m");
        assert_eq!((members[0].text("v"), members[1].text("v"), members[1].text("w")), ("1 < &lt;", "", ""));
        for wrong in ["", "no xml", "<a><b></a>", "<a><b></a></b>", "</a>", "<a", "<a/></b>"] {
            assert!(Element::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn written_document_reads_the_same() {
        let mut root = Element::parse("<r><l><m>1 &lt; &amp;lt;</m><m/></l></r>").unwrap();
        assert_eq!(Element::parse(&root.write()).unwrap(), root);
        root.find_mut("l").unwrap().children.push(Element::leaf("m", "a&b"));
        assert_eq!(Element::parse(&root.write()).unwrap().texts("l/m"), ["1 < &lt;", "", "a&b"]);
        assert!(root.find_mut("l/x").is_none());
    }

    #[test]
    fn only_routes_to_the_instance_become_blackholes() {
        let item = |id: &str, state: &str| format!("<item>{id}<state>{state}</state></item>");
        let to = |id: &str| format!("<instanceId>{id}</instanceId>");
        let xml = item(&to("i-1"), "active") + &item(&to("i-2"), "active") + &item("", "active");
        let expected = item("", "blackhole") + &item(&to("i-2"), "active") + &item("", "active");
        assert_eq!(blackhole(&xml, "i-1"), expected);
    }
}
