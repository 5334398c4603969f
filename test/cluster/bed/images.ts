// Builds container images without a registry or a builder: folders become layers, layers become an OCI archive (OCI
// image layout 1.0). Layers that are slow to build and seldom change are cached.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { cacheFolder } from '../../support/toolchains/venv.ts';
import type { Namespaces } from './namespaces.ts';

/** An uncompressed tar, and its SHA-256, which is its digest in every image. */
export type Layer = { readonly path: string; readonly hex: string; readonly size: number };

export type ImageSettings = {
  /** The program of its containers, with the first arguments. */
  readonly entrypoint: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
};

const TAR = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '--format=gnu'];
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64' };
const PATH = '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin';

/**
 * `follow`: packs the target of a link in its place, so that a folder of links copies nothing. `without`: patterns of
 * names that are left out.
 */
export type Packing = { readonly follow: boolean; readonly without?: readonly string[] };

function packed(path: string, root: string, { follow, without = [] }: Packing): Layer {
  const more = [...(follow ? ['--dereference'] : []), ...without.map((pattern) => `--exclude=${pattern}`)];
  execFileSync('tar', [...TAR, ...more, '-C', root, '-cf', path, '.']);
  const hex = createHash('sha256').update(readFileSync(path)).digest('hex');
  return { path, hex, size: statSync(path).size };
}

/** A layer with what `fill` writes into an empty folder; its file is below `home`. */
export function freshLayer(home: string, packing: Packing, fill: (root: string) => void): Layer {
  const folder = mkdtempSync(join(home, 'layer-'));
  const root = join(folder, 'root');
  mkdirSync(root);
  fill(root);
  const layer = packed(join(folder, 'layer.tar'), root, packing);
  rmSync(root, { recursive: true });
  return layer;
}

/** The same, built once per `key` and cached; the key must change whenever the content does. */
export function keptLayer(name: string, key: string, packing: Packing, fill: (root: string) => void): Layer {
  const home = join(cacheFolder(), `layer-${name}-${createHash('sha256').update(key).digest('hex').slice(0, 16)}`);
  const [facts, archive] = ['kept.json', 'kept.tar'];
  if (!existsSync(home)) {
    const making = `${home}.${process.pid}`;
    mkdirSync(making, { recursive: true });
    try {
      const { path, hex, size } = freshLayer(making, packing, fill);
      renameSync(path, join(making, archive));
      rmSync(dirname(path), { recursive: true });
      writeFileSync(join(making, facts), JSON.stringify({ hex, size }));
      if (!existsSync(home)) renameSync(making, home);
    } finally {
      rmSync(making, { recursive: true, force: true });
    }
  }
  const { hex, size } = JSON.parse(readFileSync(join(home, facts), 'utf8')) as Omit<Layer, 'path'>;
  return { path: join(home, archive), hex, size };
}

/** Writes the image layout to an empty folder, with links to its layers. `tarOf` packs it. */
export function layOut(folder: string, name: string, layers: readonly Layer[], settings: ImageSettings): void {
  const at = (hex: string) => join(folder, 'blobs/sha256', hex);
  mkdirSync(join(folder, 'blobs/sha256'), { recursive: true });
  const json = (value: object, mediaType: string) => {
    const data = Buffer.from(JSON.stringify(value));
    const hex = createHash('sha256').update(data).digest('hex');
    writeFileSync(at(hex), data);
    return { mediaType, digest: `sha256:${hex}`, size: data.length };
  };
  const blobs = layers.map(({ path, hex, size }) => {
    symlinkSync(path, at(hex));
    return { mediaType: 'application/vnd.oci.image.layer.v1.tar', digest: `sha256:${hex}`, size };
  });
  const variables = Object.entries({ PATH, ...settings.env }).map(([key, value]) => `${key}=${value}`);
  const config = json(
    {
      architecture: ARCHITECTURES[process.arch] ?? process.arch,
      os: 'linux',
      created: '1970-01-01T00:00:00Z',
      config: { Entrypoint: settings.entrypoint, Env: variables },
      rootfs: { type: 'layers', diff_ids: blobs.map(({ digest }) => digest) },
    },
    'application/vnd.oci.image.config.v1+json',
  );
  const mediaType = 'application/vnd.oci.image.manifest.v1+json';
  const manifest = json({ schemaVersion: 2, mediaType, config, layers: blobs }, mediaType);
  const annotations = {
    'io.containerd.image.name': name,
    'org.opencontainers.image.ref.name': name.split(':').at(-1) ?? '',
  };
  writeFileSync(join(folder, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }));
  writeFileSync(
    join(folder, 'index.json'),
    JSON.stringify({ schemaVersion: 2, manifests: [{ ...manifest, annotations }] }),
  );
}

/** Shell command that writes the image layout to standard output as a tar, for an importer. */
export const tarOf = (folder: string): string =>
  ['tar', ...TAR, '--dereference', '-C', folder, '-cf', '-', '.'].join(' ');

/** Imports images into the containerd that listens on `socket`, for the kubelet. `folder`: for files meanwhile. */
export function importerInto(
  namespaces: Namespaces,
  folder: string,
  packages: string,
  socket: string,
): (name: string, layers: readonly Layer[], settings: ImageSettings) => void {
  const env = { PATH: `${join(packages, 'usr/bin')}:${join(packages, 'usr/sbin')}:${process.env.PATH}` };
  const argv = [join(packages, 'usr/bin/ctr'), '-a', socket, '-n', 'k8s.io', 'images', 'import'];
  return (name, layers, settings) => {
    const image = mkdtempSync(join(folder, 'image-'));
    layOut(image, name, layers, settings);
    const { code, err } = namespaces.run(['sh', '-c', `${tarOf(image)} | ${argv.join(' ')} --local -`], { env });
    rmSync(image, { recursive: true });
    if (code !== 0) throw new Error(`${name} could not be imported: ${err.trim()}`);
  };
}
