//! A browser page: navigation, clicks and input, with a record of its requests.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use serde_json::{Value, json};

use crate::pipe::Browser;
use crate::program::Program;

/// Width in CSS pixels below which the browser behaves as on a telephone.
const MOBILE_WIDTH: u32 = 600;

/// A request of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its method.
    pub method: String,
    /// Its address.
    pub url: String,
}

/// A window of a separate browser.
pub struct Page {
    browser: Browser,
    session: String,
}

impl Page {
    /// Starts a browser and opens an empty window.
    ///
    /// # Errors
    /// If the browser does not start or respond.
    pub async fn open(program: &Program) -> Result<Self> {
        let mut browser = Browser::start(program)?;
        let target = browser.call(None, "Target.createTarget", json!({"url": "about:blank"})).await?;
        let parameters = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call(None, "Target.attachToTarget", parameters).await?;
        let session = attached["sessionId"].as_str().context("no session")?.to_owned();
        let mut page = Self { browser, session };
        for domain in ["Page", "Network", "Runtime", "Log", "Security"] {
            page.call(&format!("{domain}.enable"), json!({})).await?;
        }
        page.call("Page.setLifecycleEventsEnabled", json!({"enabled": true})).await?;
        Ok(page)
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.browser.call(Some(&self.session), method, parameters).await
    }

    /// Trusts self-signed certificates, like a user who ignores the warning.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub async fn trust_any_certificate(&mut self) -> Result<()> {
        self.call("Security.setIgnoreCertificateErrors", json!({"ignore": true})).await.map(drop)
    }

    /// Adds this header to each later request, as a proxy in front of the server does.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub async fn send_header(&mut self, name: &str, value: &str) -> Result<()> {
        self.call("Network.setExtraHTTPHeaders", json!({"headers": {name: value}})).await.map(drop)
    }

    /// Resizes the window, in CSS pixels.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub async fn resize(&mut self, width: u32, height: u32) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < MOBILE_WIDTH});
        self.call("Emulation.setDeviceMetricsOverride", size).await.map(drop)
    }

    /// Returns an image of the window, as PNG.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub async fn screenshot(&mut self) -> Result<Vec<u8>> {
        let response = self.call("Page.captureScreenshot", json!({"format": "png"})).await?;
        let encoded = response["data"].as_str().context("no image")?;
        base64::engine::general_purpose::STANDARD.decode(encoded).context("decode the image")
    }

    /// Goes to an address, and waits until the page is complete.
    ///
    /// # Errors
    /// If the page cannot be shown, with Chromium's name for the reason.
    pub async fn go(&mut self, url: &str) -> Result<()> {
        let known = self.browser.events().len();
        let navigation = self.call("Page.navigate", json!({"url": url})).await?;
        ensure!(navigation["errorText"].is_null(), "{url}: {}", navigation["errorText"]);
        self.wait_for_load(known, &navigation["loaderId"]).await
    }

    /// Waits until a document is complete.
    async fn wait_for_load(&mut self, known: usize, document: &Value) -> Result<()> {
        let is_loaded = |event: &Value| {
            let (method, about) = (&event["method"], &event["params"]);
            method == "Page.lifecycleEvent" && about["name"] == "load" && about["loaderId"] == *document
        };
        self.browser.wait_for_event(known, "the page's load event", is_loaded).await.map(drop)
    }

    /// Clicks on the first element that matches a CSS selector, and waits for the page that it leads to.
    ///
    /// # Errors
    /// If there is no such element, it is not visible, or the click opens no page.
    pub async fn click(&mut self, selector: &str) -> Result<()> {
        let known = self.browser.events().len();
        self.press(selector).await?;
        let navigation =
            self.browser.wait_for_event(known, "another page", |event| event["method"] == "Page.frameNavigated").await;
        let navigation = navigation.with_context(|| format!("a click on {selector} opens no page"))?;
        self.wait_for_load(known, &navigation["params"]["frame"]["loaderId"]).await
    }

    /// Clicks into a field, clears it, and types a text.
    ///
    /// # Errors
    /// Same as [`Page::click`].
    pub async fn fill(&mut self, selector: &str, text: &str) -> Result<()> {
        self.press(selector).await?;
        self.run("document.activeElement.select()").await?;
        self.call("Input.insertText", json!({"text": text})).await?;
        let value = self.run("document.activeElement.value").await?;
        ensure!(value == text, "{selector} does not accept the text: its value is {value}");
        Ok(())
    }

    /// Presses and releases the mouse in the middle of an element, which no other element may cover there.
    async fn press(&mut self, selector: &str) -> Result<()> {
        let place = format!(
            "(() => {{ const element = document.querySelector({selector:?}); if (!element) return null; \
             element.scrollIntoView({{block: 'center'}}); const box = element.getClientRects()[0]; if (!box) return null; \
             const x = box.left + box.width / 2, y = box.top + box.height / 2, top = document.elementFromPoint(x, y); \
             return element.contains(top) || top?.contains(element) ? [x, y] : null; }})()"
        );
        let place = self.run(&place).await?;
        let at = |index: usize| {
            place[index].as_f64().with_context(|| format!("{selector} does not exist, is not visible, or is covered"))
        };
        let (x, y) = (at(0)?, at(1)?);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event).await?;
        }
        Ok(())
    }

    /// Returns the visible text of the first element that matches a CSS selector.
    ///
    /// # Errors
    /// If there is none.
    pub async fn text(&mut self, selector: &str) -> Result<String> {
        let text = self.run(&format!("document.querySelector({selector:?})?.innerText")).await?;
        Ok(text.as_str().with_context(|| format!("the page has no {selector}"))?.to_owned())
    }

    /// Returns the number of elements that match a CSS selector.
    ///
    /// # Errors
    /// If the browser does not respond.
    pub async fn count(&mut self, selector: &str) -> Result<u64> {
        let count = self.run(&format!("document.querySelectorAll({selector:?}).length")).await?;
        count.as_u64().context("no number")
    }

    /// Returns the value of an expression of JavaScript, evaluated as in the browser's console.
    ///
    /// # Errors
    /// If it fails.
    pub async fn run(&mut self, expression: &str) -> Result<Value> {
        let mut response =
            self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true})).await?;
        let failed = &response["exceptionDetails"];
        ensure!(failed.is_null(), "{expression}: {failed}");
        Ok(response["result"]["value"].take())
    }

    /// Returns all requests so far, in order.
    pub fn requests(&self) -> Vec<Request> {
        let events = self.browser.events().iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let requests = events.map(|event| &event["params"]["request"]);
        requests.map(|request| Request { method: text(&request["method"]), url: text(&request["url"]) }).collect()
    }

    /// Returns the messages of the browser's console so far: errors, warnings, exceptions, dialogs, and violations of
    /// the page's policy.
    pub fn console_messages(&self) -> Vec<String> {
        self.browser.events().iter().filter_map(console_message).collect()
    }
}

fn console_message(event: &Value) -> Option<String> {
    let parameters = &event["params"];
    let content = match event["method"].as_str()? {
        "Log.entryAdded" => &parameters["entry"],
        "Runtime.exceptionThrown" => &parameters["exceptionDetails"],
        "Runtime.consoleAPICalled" | "Page.javascriptDialogOpening" => parameters,
        _ => return None,
    };
    Some(content.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_messages_are_reported_and_traffic_is_not() {
        for (event, expected) in [
            (json!({"method": "Log.entryAdded", "params": {"entry": {"level": "error"}}}), true),
            (json!({"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": {"text": "x"}}}), true),
            (json!({"method": "Runtime.consoleAPICalled", "params": {"type": "warning"}}), true),
            (json!({"method": "Page.javascriptDialogOpening", "params": {"message": "1"}}), true),
            (json!({"method": "Network.requestWillBeSent", "params": {"request": {}}}), false),
            (json!({"id": 1, "result": {}}), false),
        ] {
            assert_eq!(console_message(&event).is_some(), expected, "{event}");
        }
    }
}
