// Uploads a package; the server answers with the report, a page that is shown in a frame.

import { request, showError } from "./api.js";
import { zip } from "./zip.js";

const at = (id) => document.getElementById(id);
/** The server's limit, known here because a browser reports an upload that is cut as unreachable. */
const MOST_BYTES = 512 * 2 ** 20;
let shown = null;

const size = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${Math.round(bytes / 1e6)} MB`);

const archive = async () => {
  const [file] = at("archive").files;
  if (file) return file;
  const files = [...at("folder").files].filter((f) => !f.name.startsWith("."));
  if (files.length === 0) throw new Error("Expected a zip file or a folder, found neither: choose one above.");
  at("audit-status").textContent = "Packing…";
  return zip(files.map((f) => [f.webkitRelativePath || f.name, f]));
};

const audit = async () => {
  const body = await archive();
  if (body.size > MOST_BYTES) {
    const found = `Expected at most ${size(MOST_BYTES)}, found ${size(body.size)}`;
    throw new Error(`${found}: run "thane audit" on the package.`);
  }
  at("audit-status").textContent = `Uploading and auditing ${size(body.size)}…`;
  const target = encodeURIComponent(at("targets").value.replaceAll(/\s/g, ""));
  const headers = { "Content-Type": "application/zip" };
  const response = await request(`/audit?target=${target}&format=html`, { method: "POST", headers, body });
  show(await response.text());
};

const show = (html) => {
  if (shown) URL.revokeObjectURL(shown);
  shown = URL.createObjectURL(new Blob([html], { type: "text/html" }));
  at("report").src = shown;
  at("save-report").href = shown;
  for (const id of ["report", "save-report"]) at(id).hidden = false;
};

export const startAudit = () => {
  const [file, folder] = [at("archive"), at("folder")];
  file.addEventListener("change", () => { if (file.files.length > 0) folder.value = ""; });
  folder.addEventListener("change", () => { if (folder.files.length > 0) file.value = ""; });
  at("audit-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = at("audit-form").querySelector("button");
    button.disabled = true;
    at("audit-error").textContent = "";
    try {
      await audit();
      at("audit-status").textContent = "The report is below.";
    } catch (error) {
      at("audit-status").textContent = "";
      showError("audit-error", error.message);
    }
    button.disabled = false;
  });
};
