// A loader hook that rewords the product: in every file of src/ each text of two words and more has its words spelled
// backwards. Behavior that changes under it hangs on the wording of a message.
import { registerHooks, stripTypeScriptTypes } from 'node:module';
import { type Node, parse, type TemplateElement } from 'acorn';

const PROSE = /[A-Za-z]{2,} [A-Za-z]{2,}/;
const backwards = (text: string): string => text.replace(/[A-Za-z]{2,}/g, (word) => [...word].reverse().join(''));

/** The literals and pieces of templates that are prose. */
function proseIn(node: Node): readonly Node[] {
  if (/^(Import|Export(All|Named))Declaration$/.test(node.type) && 'source' in node && node.source) return [];
  if (node.type === 'Literal')
    return 'value' in node && PROSE.test(String(node.value)) && !('regex' in node) ? [node] : [];
  const found: Node[] = [];
  if (node.type === 'TemplateLiteral') {
    const pieces = (node as unknown as { readonly quasis: readonly TemplateElement[] }).quasis;
    if (PROSE.test(pieces.map(({ value }) => value.cooked).join(' '))) found.push(...pieces);
  }
  for (const child of Object.values(node).flat())
    if (typeof child === 'object' && child !== null && 'type' in child && child.type !== 'TemplateElement')
      found.push(...proseIn(child as Node));
  return found;
}

export function reworded(source: string): string {
  const plain = stripTypeScriptTypes(source);
  const tree = parse(plain, { ecmaVersion: 'latest', sourceType: 'module' });
  return proseIn(tree)
    .toSorted((a, b) => b.start - a.start)
    .reduce(
      (text, { start, end }) => text.slice(0, start) + backwards(text.slice(start, end)) + text.slice(end),
      plain,
    );
}

const ROOT = new URL('../../../src/', import.meta.url).href;
registerHooks({
  load(url, context, next) {
    if (!url.startsWith(ROOT) || !url.endsWith('.ts')) return next(url, context);
    const { source } = next(url, context);
    return { format: 'module', source: reworded(String(source)), shortCircuit: true };
  },
});
