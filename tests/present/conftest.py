"""A real browser for pages and the app: Playwright drives the Chromium of the system, if there is one."""

import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install it to test pages")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser):
    """Opens an address; at the end nothing may have been fetched from elsewhere, refused or complained about."""
    seen, contexts = [], []
    harmless = ("Method not implemented.",)  # Gradio's client warns so at every upload, which works all the same

    def opened(url, query="", *, width=1280, height=900, scheme="light"):
        size = {"width": width, "height": height}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce"))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: None if message.text in harmless else seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("request", lambda sent: None if sent.url.startswith((url, "data:")) else seen.append(sent.url))
        page.goto(url + query)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert seen == []


@pytest.fixture
def visit(open_page, tmp_path):
    """Opens the text of a page."""

    def opened(text, **options):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        return open_page(file.as_uri(), **options)

    return opened
