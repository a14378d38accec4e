// Draws Markdown files as GitHub shows them: GitHub's Markdown, its sanitising rules, alerts, emoji names, style sheet.
// Usage: node page.mjs CHROMIUM < JOBS, with [{text, picture?, width, theme, scale}]; prints as JSON what is seen of each page.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { text } from "node:stream/consumers";
import { chromium } from "playwright-core";
import rehypeRaw from "rehype-raw";
import rehypeSanitize, { defaultSchema } from "rehype-sanitize";
import rehypeStringify from "rehype-stringify";
import remarkGemoji from "remark-gemoji";
import remarkGfm from "remark-gfm";
import { remarkAlert } from "remark-github-blockquote-alert";
import remarkParse from "remark-parse";
import remarkRehype from "remark-rehype";
import { unified } from "unified";

const style = createRequire(import.meta.url).resolve("github-markdown-css/github-markdown.css");
const themes = {
  light: readFileSync(style.replace("github-markdown.css", "github-markdown-light.css"), "utf8"),
  dark: readFileSync(style.replace("github-markdown.css", "github-markdown-dark.css"), "utf8"),
};

// What people write passes GitHub's published rules; the alerts are made by GitHub itself, after them.
const written = unified().use(remarkParse).use(remarkGfm).use(remarkGemoji).use(remarkAlert)
  .use(remarkRehype, { allowDangerousHtml: true }).use(rehypeRaw)
  .use(rehypeSanitize, withAlerts(defaultSchema)).use(titles).use(rehypeStringify);

// GitHub writes "Note" where the plugin writes "NOTE".
function titles() {
  return function walk(node) {
    if (node.properties?.className?.includes("markdown-alert-title")) {
      for (const text of node.children.filter((child) => child.type === "text")) {
        text.value = text.value.charAt(0) + text.value.slice(1).toLowerCase();
      }
    }
    node.children?.forEach(walk);
  };
}

function withAlerts(schema) {
  const classes = /^markdown-alert(-title|-note|-tip|-important|-warning|-caution)?$/;
  return {
    ...schema,
    tagNames: [...schema.tagNames, "svg", "path"],
    attributes: {
      ...schema.attributes,
      div: [...(schema.attributes.div ?? []), ["className", classes], "dir"],
      p: [...(schema.attributes.p ?? []), ["className", classes], "dir"],
      svg: [["className", "octicon"], "viewBox", "width", "height", "ariaHidden"],
      path: ["d"],
    },
  };
}

function page(body, theme) {
  // The frame is that of a comment on a pull request.
  const dark = theme === "dark";
  return `<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<style>${themes[theme]}
html { background: ${dark ? "#0d1117" : "#ffffff"}; }
body { margin: 0; padding: 12px; }
.markdown-body { box-sizing: border-box; border: 1px solid ${dark ? "#3d444d" : "#d1d9e0"}; border-radius: 6px; padding: 16px;
  font-family: "Liberation Sans", Arial, "Noto Color Emoji", sans-serif; font-size: 14px; overflow-wrap: break-word; }
.markdown-body table { display: block; width: max-content; max-width: 100%; overflow: auto; }
.markdown-alert-title .octicon { margin-right: 8px; fill: currentColor; }
</style><article class="markdown-body">${body}</article>`;
}

const [, , executablePath] = process.argv;
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const found = [];
for (const job of JSON.parse(await text(process.stdin))) {
  const body = String(await written.process(job.text));
  const context = await browser.newContext({
    viewport: { width: job.width, height: 100 },
    colorScheme: job.theme,
    deviceScaleFactor: job.scale,
    offline: true,
  });
  const tab = await context.newPage();
  const asked = [];
  await context.route("**", (route) => { asked.push(route.request().url()); return route.abort(); });
  await tab.setContent(page(body, job.theme));
  const seen = await tab.evaluate(() => ({
    first: document.querySelector("article").innerText.split("\n", 1)[0],
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    scrolled: [...document.querySelectorAll("table")].map((table) => table.scrollWidth - table.clientWidth),
    scripts: document.querySelectorAll("script, iframe, form, img, a[href^='javascript']").length,
    alerts: document.querySelectorAll(".markdown-alert").length,
    links: [...document.querySelectorAll("a[href]")].map((link) => link.href),
  }));
  if (job.picture) await tab.screenshot({ path: job.picture, fullPage: true });
  await context.close();
  found.push({ ...seen, asked });
}
await browser.close();
console.log(JSON.stringify(found));
