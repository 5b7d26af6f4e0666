"""A Hub on the loopback address: as much of its HTTP interface as the real clients need to push, list and pull.

Repositories live in memory; a commit is a whole new tree, so a reader sees all of it or nothing. Faults are planted
with `Fault`: the next matching requests are refused, cut off, or answered with damaged bytes.

    with LoopbackHub() as hub:
        hub.url, hub.requests, hub.repos["model", "somebody/name"].tree("main")
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

WRITER, READER = "hf_may_write", "hf_may_read"  # the tokens it knows
LARGE = (".safetensors", ".parquet", ".bin")  # what travels by LFS, apart from the commit


@dataclass
class File:
    data: bytes
    is_large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def blob_id(self) -> str:
        data = self.sha256.encode() if self.is_large else self.data  # git keeps a pointer to a large file
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.blob_id


@dataclass
class Commit:
    sha: str
    message: str
    files: dict[str, File]


@dataclass
class Repo:
    private: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)  # tags too: names of commits

    def commit(self, branch: str, message: str, files: dict[str, File]) -> Commit:
        sha = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[sha] = Commit(sha, message, files)
        self.branches[branch] = sha
        return self.commits[sha]

    def at(self, revision: str | None) -> Commit:
        revision = unquote(revision or "main").removeprefix("refs/heads/")
        commit = self.commits.get(self.branches.get(revision, revision))
        if commit is None:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def tree(self, revision: str) -> dict[str, bytes]:
        return {path: file.data for path, file in self.at(revision).files.items()}


@dataclass
class Fault:
    """What goes wrong with the next `times` requests whose "METHOD path" matches."""

    pattern: str
    times: int = 1
    status: int | None = None  # answer with this status
    message: str = "planted"
    damage: Callable[[bytes], bytes] | None = None  # send other bytes than the headers promise; None: cut the line


class Refusal(Exception):
    def __init__(self, status: int, code: str | None, message: str) -> None:
        self.status, self.code, self.message = status, code, message


class LoopbackHub:
    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}  # LFS, by sha256
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        handler = type("BoundHandler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> LoopbackHub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def environment(self, home: object, token: str | None = WRITER) -> dict[str, str]:
        """What a client must find in its environment before it imports anything."""
        chosen = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
        quiet = dict.fromkeys(("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_UPDATE_CHECK", "DO_NOT_TRACK"), "1")
        return chosen | quiet | ({"HF_TOKEN": token} if token else {})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LoopbackHub

    def log_message(self, *_: object) -> None:
        pass

    def handle_one(self) -> None:
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        request = f"{self.command} {unquote(url.path)}"
        self.hub.requests.append(request)
        self.fault = next((f for f in self.hub.faults if f.times and re.search(f.pattern, request)), None)
        body = self.read_body()
        try:
            if self.fault:
                self.fault.times -= 1
                if self.fault.status:
                    raise Refusal(self.fault.status, None, self.fault.message)
                if self.fault.damage is None:
                    self.close_connection = True
                    return self.connection.close()
            for method, pattern, answer in ROUTES:
                if self.command in method.split() and (match := re.fullmatch(pattern, url.path)):
                    return answer(self, body, **match.groupdict())
            raise Refusal(404, None, f"no route for {request}")
        except Refusal as refusal:
            code = {"X-Error-Code": refusal.code} if refusal.code else {}
            self.send(refusal.status, {"error": refusal.message}, code | {"X-Error-Message": refusal.message})

    do_GET = do_HEAD = do_POST = do_PUT = handle_one

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send(self, status: int, body: object = b"", headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            if self.fault and self.fault.damage:
                damaged = self.fault.damage(data)
                self.close_connection = len(damaged) != len(data)
                data = damaged
            self.wfile.write(data)

    # --- who asks, and for what

    def token(self) -> str | None:
        sent = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        if sent not in (None, WRITER, READER):
            raise Refusal(401, None, "Invalid credentials in Authorization header")
        return sent

    def need_writer(self) -> None:
        token = self.token()
        if token is None:
            raise Refusal(401, None, "Invalid username or password.")
        if token != WRITER:
            raise Refusal(403, None, "You don't have the rights to write here.")

    def repo(self, kind: str | None, name: str) -> Repo:
        repo = self.hub.repos.get(((kind or "models").strip("/").removesuffix("s"), name))
        if (token := self.token()) is None and (repo is None or repo.private):
            raise Refusal(401, "RepoNotFound", "Repository not found")
        if repo is None:
            raise Refusal(404, "RepoNotFound", f"Repository not found for {token}")
        return repo

    # --- repositories

    def whoami(self, body: bytes) -> None:
        self.need_writer()
        access = {"type": "access_token", "accessToken": {"displayName": "test", "role": "write"}}
        self.send(200, {"type": "user", "name": "somebody", "fullname": "somebody", "orgs": [], "auth": access})

    def create(self, body: bytes) -> None:
        self.need_writer()
        asked = json.loads(body)
        kind, name = asked.get("type", "model"), f"{asked.get('organization') or 'somebody'}/{asked['name']}"
        url = f"{self.hub.url}/{'' if kind == 'model' else kind + 's/'}{name}"
        if (kind, name) in self.hub.repos:
            return self.send(409, {"error": "You already created this repo", "url": url})
        private = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.hub.repos[kind, name] = Repo(private)
        self.hub.repos[kind, name].commit("main", "initial commit", {})
        self.send(200, {"url": url, "name": name, "id": name})

    def info(self, body: bytes, kind: str, name: str, revision: str | None = None) -> None:
        repo = self.repo(kind, name)
        commit = repo.at(revision)
        about = {"id": name, "sha": commit.sha, "private": repo.private, "gated": False, "disabled": False, "tags": []}
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        self.send(200, {**about, "lastModified": "2026-01-01T00:00:00.000Z", "siblings": siblings})

    def refs(self, body: bytes, kind: str, name: str) -> None:
        branches = self.repo(kind, name).branches.items()
        named = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": sha} for n, sha in branches]
        self.send(200, {"branches": named, "tags": [], "converts": []})

    def branch(self, body: bytes, kind: str, name: str, branch: str) -> None:
        self.need_writer()
        repo, start = self.repo(kind, name), json.loads(body or b"{}").get("startingPoint")
        if unquote(branch) in repo.branches:
            raise Refusal(409, None, "Reference already exists")
        repo.branches[unquote(branch)] = repo.at(start).sha
        self.send(200, {})

    def tree(self, body: bytes, kind: str, name: str, revision: str, path: str | None = None) -> None:
        commit, folder = self.repo(kind, name).at(revision), unquote(path or "").strip("/")
        inside = [f for f in sorted(commit.files) if not folder or f.startswith(f"{folder}/")]
        if folder and not inside:
            raise Refusal(404, "EntryNotFound", f"{folder} does not exist")
        recursive = self.query.get("recursive", "").lower() in ("1", "true")
        depth = len(folder.split("/")) if folder else 0
        found = {}
        for file in inside:
            parts = file.split("/")
            for length in range(depth + 1, len(parts) + 1):
                if recursive or length == depth + 1:
                    found["/".join(parts[:length])] = None
        self.send(200, [entry(commit, path) for path in found])

    def paths_info(self, body: bytes, kind: str, name: str, revision: str) -> None:
        commit = self.repo(kind, name).at(revision)
        is_json = "json" in self.headers.get("Content-Type", "")
        paths = json.loads(body)["paths"] if is_json else parse_qs(body.decode()).get("paths", [])
        known = (path for path in paths if any(f == path or f.startswith(f"{path}/") for f in commit.files))
        self.send(200, [entry(commit, path) for path in known])

    # --- uploads

    def preupload(self, body: bytes, kind: str, name: str, revision: str) -> None:
        self.need_writer()
        there = self.repo(kind, name).at(revision).files
        answers = []
        for file in json.loads(body)["files"]:
            path = file["path"]
            mode = "lfs" if path.endswith(LARGE) else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False})
            if path in there:
                answers[-1]["oid"] = there[path].etag
        self.send(200, {"files": answers})

    def batch(self, body: bytes, kind: str | None, name: str) -> None:
        self.need_writer()
        self.repo(kind, name)
        answers = []
        for each in json.loads(body)["objects"]:
            answers.append({"oid": each["oid"], "size": each["size"]})
            if each["oid"] not in self.hub.objects:
                answers[-1]["actions"] = {"upload": {"href": f"{self.hub.url}/objects/{each['oid']}", "header": {}}}
        self.send(200, {"transfer": "basic", "objects": answers})

    def put(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refusal(400, None, "the bytes do not have the promised digest")
        self.hub.objects[oid] = body
        self.send(200)

    def commit(self, body: bytes, kind: str, name: str, revision: str) -> None:
        self.need_writer()
        repo, branch = self.repo(kind, name), unquote(revision)
        files, message = dict(repo.at(branch).files), ""
        for item in map(json.loads, body.splitlines()):
            key, value = item["key"], item["value"]
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]), is_large=False)
            elif key == "lfsFile":
                files[value["path"]] = File(self.hub.objects[value["oid"]], is_large=True)
            elif key == "deletedFile":
                files.pop(value["path"])
        sha = repo.commit(branch, message, files).sha
        self.send(200, {"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{name}/commit/{sha}"})

    def validate_yaml(self, body: bytes) -> None:
        self.send(200, {"errors": [], "warnings": []})

    # --- downloads

    def resolve(self, body: bytes, kind: str | None, name: str, revision: str, path: str) -> None:
        commit, path = self.repo(kind, name).at(revision), unquote(path)
        if path not in commit.files:
            raise Refusal(404, "EntryNotFound", "Entry not found")
        file = commit.files[path]
        headers = {"ETag": f'"{file.etag}"', "X-Repo-Commit": commit.sha, "Accept-Ranges": "bytes"}
        if file.is_large:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.data))}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(match[1]), min(int(match[2] or len(file.data)), len(file.data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(file.data)}"
            return self.send(206, file.data[first : last + 1], headers)
        self.send(200, file.data, headers)


def entry(commit: Commit, path: str) -> dict[str, object]:
    """A file or a folder as the Hub lists it."""
    if path not in commit.files:
        return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}
    file = commit.files[path]
    known = {"type": "file", "path": path, "size": len(file.data), "oid": file.blob_id}
    if file.is_large:
        known["lfs"] = {"oid": file.sha256, "size": len(file.data), "pointerSize": 134}
    last = {"id": commit.sha, "title": commit.message, "date": "2026-01-01T00:00:00.000Z"}
    return {**known, "lastCommit": last}


API, NAME, REVISION = r"/api/(?P<kind>models|datasets|spaces)", r"(?P<name>[\w.-]+/[\w.-]+)", r"(?P<revision>[^/]+)"
PAGES = r"/(?P<kind>datasets/|spaces/)?"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.validate_yaml),
    ("GET", f"{API}/{NAME}", Handler.info),
    ("GET", f"{API}/{NAME}/revision/{REVISION}", Handler.info),
    ("GET", f"{API}/{NAME}/refs", Handler.refs),
    ("POST", f"{API}/{NAME}/branch/(?P<branch>[^/]+)", Handler.branch),
    ("GET", f"{API}/{NAME}/tree/{REVISION}(?P<path>/.*)?", Handler.tree),
    ("POST", f"{API}/{NAME}/paths-info/{REVISION}", Handler.paths_info),
    ("POST", f"{API}/{NAME}/preupload/{REVISION}", Handler.preupload),
    ("POST", f"{API}/{NAME}/commit/{REVISION}", Handler.commit),
    ("POST", rf"{PAGES}{NAME}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", "/objects/(?P<oid>[0-9a-f]{64})", Handler.put),
    ("GET HEAD", f"{PAGES}{NAME}/resolve/{REVISION}/(?P<path>.+)", Handler.resolve),
]
