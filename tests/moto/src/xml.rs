//! Just enough XML: texts by their tag, for answers that a machine made.

/// The texts of all elements of that name, in order.
pub(crate) fn texts(xml: &str, tag: &str) -> Vec<String> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let found = xml.split(&open).skip(1).filter_map(|rest| rest.split_once(&close));
    found.map(|(text, _)| text.trim().to_owned()).collect()
}

/// The answer with the routes to this machine turned into ones that lead nowhere, as AWS shows them when it is gone.
pub(crate) fn blackhole(xml: &str, instance: &str) -> String {
    let mark = format!("<instanceId>{instance}</instanceId>");
    let mut parts = xml.split(&mark);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (route, rest) = part.split_at(part.find("</item>").unwrap_or(part.len()));
        format!("{text}{}{rest}", route.replacen("<state>active</state>", "<state>blackhole</state>", 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_in_order() {
        let xml = "<a><id>1</id><b><id> 2 </id></b><idle>3</idle><id/></a>";
        assert_eq!(texts(xml, "id"), ["1", "2"]);
        assert_eq!(texts(xml, "c"), Vec::<String>::new());
    }

    #[test]
    fn only_routes_to_the_machine_lead_nowhere() {
        let item = |id: &str, state: &str| format!("<item>{id}<state>{state}</state></item>");
        let to = |id: &str| format!("<instanceId>{id}</instanceId>");
        let xml = item(&to("i-1"), "active") + &item(&to("i-2"), "active") + &item("", "active");
        let expected = item("", "blackhole") + &item(&to("i-2"), "active") + &item("", "active");
        assert_eq!(blackhole(&xml, "i-1"), expected);
    }
}
