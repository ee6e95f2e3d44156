//! The reports as HTML pages: one file each, without scripts, fonts or external images.

use std::fmt::{self, Display, Write as _};

use super::object::{Report, Wait, WaitKind};
use super::overview::{Controller, Overview, Store};
use crate::text::human_duration;

/// The path of both pages.
pub(crate) const PATH: &str = "/debug/reconcile";

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:14px/1.45 system-ui,sans-serif;margin:0 auto;max-width:75rem;padding:1rem}\
h1{font-size:1.3rem}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.2rem .6rem .2rem 0;vertical-align:top;border-bottom:1px solid #8884;overflow-wrap:anywhere}\
th{font-weight:600}@media(min-width:60rem){td{min-width:5rem}th{white-space:nowrap}}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
form{display:flex;flex-wrap:wrap;gap:.5rem;align-items:end}label{display:block;font-size:.85em}\
input{font:inherit}.bad{color:#c0392b;font-weight:600}.quiet{opacity:.7}\
summary{cursor:pointer}code{font-size:.95em}";

/// A text that is escaped for HTML, including attributes in double quotes.
struct Text<T>(T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Escape<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl fmt::Write for Escape<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|letter| match letter {
                    '&' => self.0.write_str("&amp;"),
                    '<' => self.0.write_str("&lt;"),
                    '>' => self.0.write_str("&gt;"),
                    '"' => self.0.write_str("&quot;"),
                    '\'' => self.0.write_str("&#39;"),
                    letter => self.0.write_char(letter),
                })
            }
        }
        write!(Escape(f), "{}", self.0)
    }
}

/// Returns a text, encoded for a query.
fn encoded(text: &str) -> String {
    crate::text::percent_encode(text)
}

fn link(kind: &str, namespace: &str, name: &str) -> String {
    let (kind, namespace, name) = (encoded(kind), encoded(namespace), encoded(name));
    format!("{PATH}?kind={kind}&amp;namespace={namespace}&amp;name={name}")
}

/// Returns a controller's key, as a link if its kind is known.
fn key(kind: Option<&str>, key: &str) -> String {
    let Some(kind) = kind else { return format!("<code>{}</code>", Text(key)) };
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    format!("<a href=\"{}\"><code>{}</code></a>", link(kind, namespace, name), Text(key))
}

fn page(title: &str, body: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        Text(title)
    );
    // Writing to a String cannot fail.
    let _ = body(&mut html);
    html.push_str("</body>\n</html>\n");
    html
}

fn form(html: &mut String, kind: &str, namespace: &str, name: &str) -> fmt::Result {
    writeln!(html, "<form action=\"{PATH}\" method=\"get\">")?;
    for (field, label, value, hint) in [
        ("kind", "Kind", kind, "Deployment"),
        ("namespace", "Namespace", namespace, "default"),
        ("name", "Name", name, "web"),
    ] {
        writeln!(
            html,
            "<label for=\"{field}\">{label}<br/><input id=\"{field}\" name=\"{field}\" value=\"{}\" placeholder=\"{hint}\"/></label>",
            Text(value)
        )?;
    }
    writeln!(html, "<button type=\"submit\">Why is it stuck?</button>\n</form>")
}

fn head(html: &mut String, columns: &[&str]) -> fmt::Result {
    html.push_str("<table>\n<thead><tr>");
    for column in columns {
        let (class, name) = column.strip_prefix('#').map_or(("", *column), |name| (" class=\"n\"", name));
        write!(html, "<th scope=\"col\"{class}>{name}</th>")?;
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    Ok(())
}

const TABLE_END: &str = "</tbody>\n</table>\n";

fn leadership(leader: bool) -> &'static str {
    if leader { "leads" } else { "does not lead: its workers are idle" }
}

/// Returns the page about the whole process.
pub(super) fn overview(report: &Overview) -> String {
    page(&format!("Reconciles of {}", report.component), |html| {
        writeln!(html, "<h1>Why is this stuck? {}</h1>", Text(report.component))?;
        writeln!(html, "<p>{}, this process {}.</p>", Text(&report.time), leadership(report.leader))?;
        form(html, "", "", "")?;
        failing(html, &report.controllers)?;
        running(html, &report.controllers)?;
        controllers(html, &report.controllers)?;
        decisions(html, &report.controllers)?;
        stores(html, &report.stores)?;
        writeln!(html, "<p class=\"quiet\">For scripts: <a href=\"{PATH}?format=json\">the same as JSON</a>.</p>")
    })
}

fn failing(html: &mut String, controllers: &[Controller]) -> fmt::Result {
    html.push_str("<h2>Failing keys</h2>\n");
    if controllers.iter().all(|controller| controller.failing.is_empty()) {
        html.push_str("<p>None.</p>\n");
        return Ok(());
    }
    head(html, &["Controller", "Key", "Last error", "Since", "#Failures", "Next try"])?;
    for controller in controllers {
        for failing in &controller.failing {
            let next = match failing.next_try_in_seconds {
                Some(seconds) => format!("in {}", human_duration(seconds)),
                None => "at the next change".to_owned(),
            };
            writeln!(
                html,
                "<tr><td>{}</td><td>{}</td><td class=\"bad\">{}</td><td>{}</td><td class=\"n\">{}</td><td>{next}</td></tr>",
                Text(controller.name),
                key(controller.kind, &failing.key),
                Text(&failing.error),
                Text(&failing.since),
                failing.times
            )?;
        }
        if controller.failing_not_listed > 0 {
            let more = controller.failing_not_listed;
            writeln!(html, "<tr><td>{}</td><td colspan=\"5\">and {more} more</td></tr>", Text(controller.name))?;
        }
    }
    html.push_str(TABLE_END);
    Ok(())
}

/// Writes the keys that are being reconciled. A run that does not end keeps its key from being reconciled again.
fn running(html: &mut String, controllers: &[Controller]) -> fmt::Result {
    html.push_str("<h2>Running reconciles</h2>\n");
    if controllers.iter().all(|controller| controller.queue.running.is_empty()) {
        html.push_str("<p>None.</p>\n");
        return Ok(());
    }
    head(html, &["Controller", "Key", "#Running for"])?;
    for controller in controllers {
        for running in &controller.queue.running {
            let (name, time) = (Text(controller.name), human_duration(running.for_seconds));
            let key = key(controller.kind, &running.key);
            writeln!(html, "<tr><td>{name}</td><td>{key}</td><td class=\"n\">{time}</td></tr>")?;
        }
    }
    html.push_str(TABLE_END);
    Ok(())
}

fn controllers(html: &mut String, controllers: &[Controller]) -> fmt::Result {
    html.push_str("<h2>Controllers</h2>\n");
    head(
        html,
        &[
            "Controller",
            "Queue",
            "#Waiting",
            "#Delayed",
            "#Working",
            "#Workers",
            "#Done",
            "#Failed",
            "#Panicked",
            "#Waiting for cache",
        ],
    )?;
    for controller in controllers {
        let (queue, reconciles) = (&controller.queue, &controller.reconciles);
        let longest = match queue.working {
            0 => String::new(),
            _ => format!(" ({})", human_duration(queue.longest_working_seconds)),
        };
        let failed = if controller.failing.is_empty() { "n" } else { "n bad" };
        write!(html, "<tr><td>{}</td><td>{}</td>", Text(controller.name), Text(queue.name))?;
        write!(html, "<td class=\"n\">{}</td><td class=\"n\">{}</td>", queue.depth, queue.delayed)?;
        write!(html, "<td class=\"n\">{}{longest}</td><td class=\"n\">{}</td>", queue.working, controller.workers)?;
        write!(html, "<td class=\"n\">{}</td><td class=\"{failed}\">{}</td>", reconciles.succeeded, reconciles.failed)?;
        writeln!(
            html,
            "<td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            reconciles.panicked, reconciles.waiting_for_cache
        )?;
    }
    html.push_str(TABLE_END);
    Ok(())
}

fn decisions(html: &mut String, controllers: &[Controller]) -> fmt::Result {
    html.push_str("<h2>Last decisions</h2>\n");
    for controller in controllers.iter().filter(|controller| !controller.recent.is_empty()) {
        let (name, count) = (Text(controller.name), controller.recent.len());
        writeln!(html, "<details>\n<summary>{name} ({count})</summary>")?;
        head(html, &["Key", "At", "#Took", "Outcome", "Actions"])?;
        for decision in &controller.recent {
            writeln!(
                html,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{:.3}s</td><td>{}</td><td>{}</td></tr>",
                key(controller.kind, &decision.key),
                Text(&decision.at),
                decision.took_seconds,
                Text(&decision.outcome),
                Text(&decision.did)
            )?;
        }
        writeln!(html, "{TABLE_END}</details>")?;
    }
    Ok(())
}

fn stores(html: &mut String, stores: &[Store]) -> fmt::Result {
    html.push_str("<h2>Stores</h2>\n");
    head(html, &["Resource", "#Objects", "First list", "#Cannot be decoded", "#Outdated", "#Watch restarts"])?;
    for store in stores {
        let (class, complete) = if store.synced { ("", "complete") } else { (" class=\"bad\"", "not complete") };
        let broken = if store.undecodable > 0 { "n bad" } else { "n" };
        write!(html, "<tr><td>{}</td><td class=\"n\">{}</td>", Text(&store.resource), store.objects)?;
        write!(html, "<td{class}>{complete}</td><td class=\"{broken}\">{}</td>", store.undecodable)?;
        write!(html, "<td class=\"{broken}\">{}</td>", store.stale)?;
        writeln!(html, "<td class=\"n\">{}</td></tr>", store.restarts)?;
    }
    html.push_str(TABLE_END);
    Ok(())
}

/// Returns the page about an object.
pub(super) fn object(report: &Report) -> String {
    let (kind, namespace, name) = (&*report.kind, &*report.namespace, &*report.name);
    let full = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    page(&format!("{kind} {full}"), |html| {
        writeln!(html, "<h1>{} {}</h1>", Text(kind), Text(&full))?;
        let (time, component) = (Text(&report.time), Text(report.component));
        writeln!(
            html,
            "<p>{time}, {component}, which {}. <a href=\"{PATH}\">Overview</a></p>",
            leadership(report.leader)
        )?;
        form(html, kind, namespace, name)?;
        facts(html, report)?;
        waits(html, &report.waits_for)?;
        reports(html, report)?;
        related(html, "Owners", "It has no owners.", &report.owners)?;
        let dependents = &report.dependents;
        let title = match dependents.total {
            0 => "Dependents".to_owned(),
            total => format!("Dependents ({total}, of which {} block a foreground deletion)", dependents.blocking),
        };
        related(html, &title, "No watched object refers to it as its owner.", &dependents.shown)?;
        if dependents.total > dependents.shown.len() {
            writeln!(html, "<p>and {} more</p>", dependents.total - dependents.shown.len())?;
        }
        let json = link(kind, namespace, name);
        writeln!(html, "<p class=\"quiet\">For scripts: <a href=\"{json}&amp;format=json\">the same as JSON</a>.</p>")
    })
}

fn facts(html: &mut String, report: &Report) -> fmt::Result {
    let Some(object) = &report.object else {
        html.push_str("<p class=\"bad\">Not in the cache: it does not exist, it cannot be decoded, its kind is not watched here, or the watch is behind.</p>\n");
        return Ok(());
    };
    write!(html, "<p>{} {}, uid <code>{}</code>", Text(&object.api_version), Text(object.kind), Text(&object.uid))?;
    write!(html, ", version {}, generation {}", Text(&object.resource_version), object.generation)?;
    write!(html, ", created {}.", Text(&object.created))?;
    if let Some(deletion) = &object.deletion {
        write!(html, " <strong class=\"bad\">Being deleted since {}.</strong>", Text(deletion))?;
    }
    if !object.finalizers.is_empty() {
        write!(html, " Finalizers: <code>{}</code>.", Text(object.finalizers.join(", ")))?;
    }
    html.push_str("</p>\n");
    Ok(())
}

fn waits(html: &mut String, waits: &[Wait]) -> fmt::Result {
    html.push_str("<h2>Waiting for</h2>\n");
    if waits.is_empty() {
        html.push_str("<p>Nothing known to this process.</p>\n");
        return Ok(());
    }
    head(html, &["What", "Description", "Who has to act"])?;
    for wait in waits {
        let bad = match wait.what {
            WaitKind::Deadline | WaitKind::Queue => "",
            _ => " class=\"bad\"",
        };
        let what = format!("{:?}", wait.what).to_lowercase();
        writeln!(html, "<tr><td{bad}>{what}</td><td>{}</td><td>{}</td></tr>", Text(&wait.text), Text(&wait.by))?;
    }
    html.push_str(TABLE_END);
    Ok(())
}

fn reports(html: &mut String, report: &Report) -> fmt::Result {
    html.push_str("<h2>Controllers</h2>\n");
    if report.controllers.is_empty() {
        html.push_str("<p>No controller of this process has a record of it: nothing failed, nothing is scheduled, and none of the last decisions is about it.</p>\n");
        return Ok(());
    }
    head(html, &["Controller", "Now", "Last decision", "At", "Actions", "Last error"])?;
    for report in &report.controllers {
        let empty = super::overview::Decision::default();
        let last = report.last_decision.as_ref().unwrap_or(&empty);
        write!(html, "<tr><td>{}</td><td>{}</td>", Text(report.controller), Text(&report.state))?;
        write!(html, "<td>{}</td><td>{}</td><td>{}</td>", Text(&last.outcome), Text(&last.at), Text(&last.did))?;
        writeln!(html, "<td class=\"bad\">{}</td></tr>", Text(report.error.as_deref().unwrap_or_default()))?;
    }
    html.push_str(TABLE_END);
    Ok(())
}

fn related(html: &mut String, title: &str, none: &str, objects: &[super::object::Related]) -> fmt::Result {
    writeln!(html, "<h2>{title}</h2>")?;
    if objects.is_empty() {
        return writeln!(html, "<p>{none}</p>");
    }
    head(html, &["Kind", "Object", "State"])?;
    for object in objects {
        let full = if object.namespace.is_empty() {
            object.name.clone()
        } else {
            format!("{}/{}", object.namespace, object.name)
        };
        let target = link(&object.kind, &object.namespace, &object.name);
        let (kind, full, state) = (Text(&object.kind), Text(&full), Text(&object.state));
        writeln!(html, "<tr><td>{kind}</td><td><a href=\"{target}\">{full}</a></td><td>{state}</td></tr>")?;
    }
    html.push_str(TABLE_END);
    Ok(())
}
