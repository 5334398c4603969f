// What draws the boards, ready to be served: the packages of this folder's lock file, installed once into the cache, and
// the page with all that it needs in one file. Without the network on the first use the result is a reason.
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { run } from '../support/services/promtool.ts';

const INSTALL_MS = 10 * 60_000;
const BUNDLE_MS = 5 * 60_000;
const HERE = import.meta.dirname;
const cache = process.env.COTENANT_CACHE ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'cotenant');
const digest = (...names: readonly string[]): string => {
  const hash = createHash('sha256');
  for (const name of names) hash.update(readFileSync(join(HERE, name)));
  return hash.digest('hex').slice(0, 12);
};

/** A folder with page.js, page.css and the icons of Grafana in public. */
export type Bundle = { readonly page: string; readonly icons: string } | { readonly reason: string };

const INSTALLED = join(cache, `boards-${digest('package-lock.json')}`);
const PAGE = join(INSTALLED, `page-${digest('page.jsx')}`);

/** What the layer prepared. */
export function bundled(): Bundle {
  if (!existsSync(INSTALLED)) return { reason: 'the packages of test/boards could not be installed; the log says why' };
  if (!existsSync(PAGE)) throw new Error('the page of test/boards could not be bundled; the log says why');
  return { page: PAGE, icons: join(INSTALLED, 'node_modules/@grafana/ui/dist/public') };
}

function prepare(): void {
  const why = existsSync(INSTALLED) ? undefined : install(INSTALLED);
  if (why !== undefined) console.log(`the packages of test/boards could not be installed: ${why}`);
  else if (!existsSync(PAGE)) bundle(INSTALLED, PAGE);
}

function install(into: string): string | undefined {
  mkdirSync(cache, { recursive: true });
  const work = mkdtempSync(join(cache, 'installing-'));
  try {
    for (const name of ['package.json', 'package-lock.json']) cpSync(join(HERE, name), join(work, name));
    console.log(`installing Grafana's components into ${cache}, once`);
    // react-table, which draws nothing here, names an older React as its peer.
    const flags = ['--ignore-scripts', '--legacy-peer-deps', '--no-audit', '--no-fund'];
    const { ok, stderr } = run('npm', ['ci', ...flags], work, INSTALL_MS);
    if (!ok) return stderr.trim().split('\n').slice(-3).join(' ');
    // Another test may have been faster; its copy is as good.
    if (!existsSync(into)) renameSync(work, into);
    return undefined;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

function bundle(installed: string, page: string): void {
  const work = mkdtempSync(join(installed, 'bundling-'));
  const flags = ['--define:process.env.NODE_ENV="production"', '--define:global=window', '--loader:.ttf=empty'];
  const args = [join(HERE, 'page.jsx'), '--bundle', '--format=iife', '--log-level=error', ...flags];
  const env = `NODE_PATH=${join(installed, 'node_modules')}`;
  const esbuild = join(installed, 'node_modules/.bin/esbuild');
  const { ok, stderr } = run('env', [env, esbuild, ...args, `--outfile=${join(work, 'page.js')}`], HERE, BUNDLE_MS);
  // The test fails then, and not the layer.
  if (!ok) console.log(`the page of test/boards cannot be bundled: ${stderr}`);
  else if (!existsSync(page)) renameSync(work, page);
}

if (import.meta.main) prepare();
