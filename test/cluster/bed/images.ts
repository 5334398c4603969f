// Container images made without a registry and without a builder: a folder becomes an OCI archive with one layer.
// Format: OCI image layout 1.0. The name is what containerd imports it as.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const TAR = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '--format=gnu'];
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64' };

/** Writes `archive`; `root` is the file system, `entrypoint` the program that a container of it runs. */
export function makeImage(archive: string, name: string, root: string, entrypoint: readonly string[]): void {
  const folder = mkdtempSync(join(tmpdir(), 'ct-image-'));
  try {
    mkdirSync(join(folder, 'blobs/sha256'), { recursive: true });
    const blob = (data: Buffer, mediaType: string) => {
      const hex = createHash('sha256').update(data).digest('hex');
      writeFileSync(join(folder, 'blobs/sha256', hex), data);
      return { mediaType, digest: `sha256:${hex}`, size: data.length };
    };
    const json = (value: object, mediaType: string) => blob(Buffer.from(JSON.stringify(value)), mediaType);
    const layer = blob(
      execFileSync('tar', [...TAR, '-C', root, '-cf', '-', '.'], { maxBuffer: 1 << 30 }),
      'application/vnd.oci.image.layer.v1.tar',
    );
    const config = json(
      {
        architecture: ARCHITECTURES[process.arch] ?? process.arch,
        os: 'linux',
        created: '1970-01-01T00:00:00Z',
        config: { Entrypoint: entrypoint, Env: ['PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin'] },
        rootfs: { type: 'layers', diff_ids: [layer.digest] },
      },
      'application/vnd.oci.image.config.v1+json',
    );
    const mediaType = 'application/vnd.oci.image.manifest.v1+json';
    const manifest = json({ schemaVersion: 2, mediaType, config, layers: [layer] }, mediaType);
    const annotations = {
      'io.containerd.image.name': name,
      'org.opencontainers.image.ref.name': name.split(':').at(-1) ?? '',
    };
    writeFileSync(join(folder, 'oci-layout'), JSON.stringify({ imageLayoutVersion: '1.0.0' }));
    writeFileSync(
      join(folder, 'index.json'),
      JSON.stringify({ schemaVersion: 2, manifests: [{ ...manifest, annotations }] }),
    );
    execFileSync('tar', [...TAR, '-C', folder, '-cf', archive, '.']);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
