// Reads files of YAML or JSON as kubectl reads them: YAML 1.1 without dates and numbers to the base of 60, as a value of JSON.
// Facts: sigs.k8s.io/yaml, goyaml.v2/resolve.go (`<<` merges, `on` is true, 0777 is octal) and decode.go.
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { type ParseOptions, parseAllDocuments, type SchemaOptions, type Tags } from 'yaml';
import { attempt } from '../../common/result.ts';
import { UsageError } from './command.ts';

/** The text of a file, or of standard input for `-`. */
export function readText(path: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(readFileSync(path === '-' ? 0 : path));
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new UsageError(`${path === '' ? '""' : path}: ${WRONG_FILE[code ?? ''] ?? message}`);
  }
}

const WRONG_FILE: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file',
  EISDIR: 'is a folder',
  EACCES: 'may not be read',
  ERR_ENCODING_INVALID_ENCODED_DATA: 'is no text in UTF-8; save it in that encoding',
};

const DATE = 'tag:yaml.org,2002:timestamp';
const AS_KUBECTL: ParseOptions & SchemaOptions & { readonly version: '1.1' } = {
  version: '1.1',
  customTags: (tags: Tags) =>
    tags.filter((tag) => typeof tag === 'string' || (tag.tag !== DATE && !('format' in tag && tag.format === 'TIME'))),
};
const MOST_ALIASES = 1000;

/** The documents of a file, without empty ones; values that an anchor shares are copies. */
export function readYaml(path: string): readonly unknown[] {
  const text = readText(path);
  // A cluster's objects may be 100 MB of JSON, which the parser of YAML takes a gigabyte for.
  const json = /^\s*[{[]/.test(text) ? attempt(() => JSON.parse(text) as unknown) : undefined;
  if (json?.ok) return [json.value];
  const refuse = (message = ''): never => {
    const isTemplate = /\{\{.*\}\}/.test(text);
    const hint = isTemplate ? '\nit has marks of a template ({{ }}): render it first, as with "helm template"' : '';
    throw new UsageError(`${path}: ${message.trimEnd()}${hint}`);
  };
  // Objects of JSON one after the other: no line within one begins with a brace.
  const separated = text.startsWith('{') ? text.replaceAll(/\}\s*\n(?=\{)/g, '}\n---\n') : text;
  return [parseAllDocuments(separated, AS_KUBECTL)].flat().flatMap((document, index) => {
    const [error] = 'errors' in document ? document.errors : [];
    if (error) return refuse(error.message);
    try {
      const value: unknown = document.toJS({ maxAliasCount: MOST_ALIASES });
      return value === null || value === undefined ? [] : [JSON.parse(JSON.stringify(value))];
    } catch (error) {
      // An anchor that is not there, or that contains itself, or that is too often in others.
      return refuse(`document ${index + 1}: ${(error as Error).message.split('\n')[0]}`);
    }
  });
}

const MANIFEST = /\.(ya?ml|json)$/;

/** The file itself, or of a folder the manifests in it, as `kubectl -f` takes them. */
export function manifestsIn(path: string): readonly string[] {
  if (!(statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false)) return [path];
  const files = readdirSync(path, { withFileTypes: true }).filter(({ name }) => MANIFEST.test(name));
  if (files.length === 0) throw new UsageError(`${path}: has no files that end with .yaml, .yml or .json`);
  return files.map(({ name }) => join(path, name)).toSorted();
}
