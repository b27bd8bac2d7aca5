//! A Chromium without a window, told what to do by its DevTools protocol over two pipes: JSON, each message ended by a
//! zero. So a page is met as it is served, with its own policy in force, which lets no script be added to it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// However slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// The browser with one page open.
pub(crate) struct Browser {
    process: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    sent: u64,
    /// The page's complaints.
    pub(crate) complaints: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// None where there is no Chromium.
    pub(crate) fn start() -> Option<Self> {
        let starts = |name: &&str| {
            let version = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            version.is_ok_and(|status| status.success())
        };
        let name = BROWSERS.into_iter().find(starts)?;
        let profile = tempfile::tempdir().unwrap();
        // The protocol is spoken on descriptors 3 and 4.
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", "sh", name])
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the browser starts");
        let (to, mut pipe) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while pipe.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                if sender.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut browser = Self { process, to, from, session: None, sent: 0, complaints: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = target["targetId"].as_str().unwrap().to_owned();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Has it done, and returns what it brought.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let mut heard = self.from.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{method}: no answer"));
            if heard["id"] == json!(self.sent) {
                assert!(heard["error"].is_null(), "{method}: {}", heard["error"]);
                return heard["result"].take();
            }
            let complaint = match heard["method"].as_str() {
                Some("Runtime.exceptionThrown") => &heard["params"]["exceptionDetails"]["exception"]["description"],
                Some("Log.entryAdded") => &heard["params"]["entry"]["text"],
                Some("Runtime.consoleAPICalled") => &heard["params"]["args"],
                _ => continue,
            };
            self.complaints.push(complaint.to_string());
        }
    }

    /// A window of that size, in that scheme ("light" or "dark").
    pub(crate) fn window(&mut self, (width, height): (u32, u32), scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
    }

    /// Returns the value of the expression on the page; promises are waited for.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let how = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.call("Runtime.evaluate", how);
        assert!(result["exceptionDetails"].is_null(), "{}", result["exceptionDetails"]);
        result["result"]["value"].take()
    }

    /// Asks until it is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        for _ in 0..600 {
            if self.evaluate(expression) == json!(true) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let seen = self.evaluate("document.body.innerText");
        panic!("{expression} did not come true; {:?}; {seen}", self.complaints);
    }

    /// Returns a picture of the whole page.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        use base64::Engine;
        let shot = self.call("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}));
        base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
