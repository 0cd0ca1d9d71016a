"""The page: an image dropped on it comes back with its boxes, and only that is requested.

Needs Playwright (in the test extra) and a Chromium of the system; Playwright's own download is not used.
"""

import base64
import shutil

import pytest
from serving import Bright, file_of, make_image, serving

from objectseeker import Detections

api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium found: apt-get install chromium", allow_module_level=True)

NAME = "<img src=x onerror=alert(1)>.png"
DROP = """([content, name]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type: "image/png" }));
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""  # noqa: E501


class Evasive:
    """Finds what is bright; not in an image with a patch in its corner."""

    names = ("<b>bright</b>",)

    def __call__(self, images):
        return [Detections.empty() if image[0, 0, 0] == 7 else Bright.see(image) for image in images]


@pytest.fixture(scope="module")
def opened():
    faults = []
    with serving(Evasive()) as running, api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])

        def open_page(part="", **options):
            page = browser.new_context(**options).new_page()
            page.set_default_timeout(10_000)
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
            page.on("dialog", lambda dialog: faults.append("a dialog") or dialog.dismiss())
            page.goto(f"http://127.0.0.1:{running.port}/{part}")
            return page

        yield open_page, faults, running
        browser.close()


def drop(page, image):
    page.evaluate(DROP, [base64.b64encode(file_of(image)).decode(), NAME])
    page.locator("#result:not([hidden])").wait_for()


def test_drop_an_image_and_see_boxes(opened):
    open_page, faults, _ = opened
    page = open_page(color_scheme="light", viewport={"width": 900, "height": 700})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    clean, attacked = make_image(), make_image()
    attacked[:3, :3] = 7
    drop(page, clean)
    assert page.locator("#status").inner_text() == "1 box, 0 recovered by masking."
    assert page.locator("#alert").is_hidden()
    box, shown = page.locator("#boxes .box").bounding_box(), page.locator("#image").bounding_box()
    for side, corner, share in (("x", "width", 1 / 3), ("y", "height", 1 / 3)):
        assert abs(box[side] - shown[side] - share * shown[corner]) < 3
        assert abs(box[corner] - shown[corner] / 3) < 4
    assert page.locator("tbody td").all_inner_texts() == ["<b>bright</b>", "0.90", "base"]
    page.locator("#certify").check()  # the same image again
    page.locator("th:text('cannot have made')").wait_for()
    drop(page, attacked)
    page.locator("#alert").wait_for()
    assert page.locator("#boxes .box.recovered").count() == 1
    assert page.locator("tbody tr").first.locator("td").count() == 14
    assert "If an image is already attacked, objects may be missing" in page.locator("#about").inner_text()
    assert {address.rpartition("/")[2] for address in asked if not address.startswith("blob:")} == {
        "detect",
        "detect?certify=1",
    }
    assert not faults


def test_errors_are_shown_and_the_phone_has_room(opened):
    open_page, faults, _ = opened
    page = open_page("?certify=1", color_scheme="dark", is_mobile=True, viewport={"width": 390, "height": 800})
    assert page.locator("#certify").is_checked()
    page.set_input_files("#file", {"name": NAME, "mimeType": "image/png", "buffer": b"nothing"})
    page.locator("#status.error").wait_for()
    assert "cannot read image" in page.locator("#status").inner_text()
    faults.clear()  # the browser notes every 400
    drop(page, make_image())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
    assert not faults


def test_the_policy_lets_nothing_else_run(opened):
    open_page, faults, running = opened
    _, headers, content = running.ask("GET", "/")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert b"http://" not in content.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in content
    page = open_page()
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.run=1'}))"
    )
    assert page.evaluate("window.run") is None
    assert any("Content Security Policy" in fault for fault in faults)
    faults.clear()
