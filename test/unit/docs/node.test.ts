// The page on the node's side, and the names and numbers that it tells.
import test from 'ava';
import { DEFAULTS } from '../../../src/agent/config.ts';
import { OWN_FILE } from '../../../src/agent/kubelet/cdi/folders.ts';
import { OWN_KIND } from '../../../src/agent/kubelet/cdi/split-spec.ts';
import { devicesOf } from '../../../src/agent/kubelet/device-plugin/service.ts';
import { CDI_KIND, DEFAULT_INDEX, NRI_SOCKET } from '../../../src/agent/kubelet/nri/plugin.ts';
import { LARGEST_MESSAGE } from '../../../src/agent/kubelet/nri/ttrpc.ts';
import { foldersOf } from '../../../src/agent/kubelet/settings.ts';
import {
  DRIVER_CAPABILITIES_VARIABLE,
  GPU,
  GPUS_ANNOTATION,
  NRI_PLUGIN,
  OWN_RESOURCES,
  UUIDS_PREFIX,
} from '../../../src/api/names.ts';
import { DRIVER_CAPABILITIES } from '../../../src/request/rules/namespace-rules.ts';
import { quoted, readPage, section } from '../../support/docs.ts';

const page = readPage('docs/operate/node.md');

test('the page calls everything by the names that are used', (t) => {
  const [advertised, slots, gpus] = ['## Amounts', '## Slots', '## GPUs'].map((start) =>
    section(page, page.split('\n').find((line) => line.startsWith(start)) ?? start),
  );
  for (const name of [...OWN_RESOURCES, GPUS_ANNOTATION]) t.true(quoted(page).includes(name), name);
  for (const name of OWN_RESOURCES.filter((one) => one !== GPU)) t.true(quoted(advertised).includes(name), name);
  for (const { ID } of devicesOf({ healthy: 1, unhealthy: 1 })) t.true(quoted(slots).includes(ID), ID);
  const documented = [
    `named \`${NRI_PLUGIN}\`, index ${DEFAULT_INDEX}`,
    `frames above ${LARGEST_MESSAGE >> 20} MiB`,
    UUIDS_PREFIX,
  ];
  const names = [`${CDI_KIND}=<UUID>`, `${OWN_KIND}=<UUID>`, OWN_FILE, DRIVER_CAPABILITIES_VARIABLE];
  const folders = foldersOf(DEFAULTS.kubernetes.cdiFolders);
  for (const text of [...documented, NRI_SOCKET, ...folders, ...names, ...DRIVER_CAPABILITIES])
    t.true(gpus?.includes(text), text);
});

test('defaults on the page are those of the settings', (t) => {
  t.is(DEFAULTS.kubernetes.nriSocket, NRI_SOCKET);
  t.is(DEFAULTS.kubernetes.cdiKind, CDI_KIND);
});
