// How well GPUs reach one another, and which memory of the host is near them.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "sampler.h"

namespace {

constexpr const char *ANCESTOR = "nvmlDeviceGetTopologyCommonAncestor", *LINK_STATE = "nvmlDeviceGetNvLinkState",
                     *LINK_TYPE = "nvmlDeviceGetNvLinkRemoteDeviceType",
                     *LINK_PCI = "nvmlDeviceGetNvLinkRemotePciInfo_v2", *AFFINITY = "nvmlDeviceGetMemoryAffinity";
constexpr unsigned MAX_NUMA_NODES = 64;
constexpr unsigned NVLINK = 6; // levels below are those of PCIe; above, one more for each NVLink

// The other ends of a GPU's NVLinks: PCI addresses of GPUs, and how many lead to switches.
struct Ends {
    std::vector<std::string> gpus;
    unsigned switches = 0;
};

Ends ends_of(nvml::Library &library, nvml::Device device) {
    Ends ends;
    if (!library.has(LINK_STATE)) return ends;
    for (unsigned link = 0; link < NVML_ABI_MAX_LINKS; link++) {
        unsigned active = 0, type = NVML_ABI_LINK_GPU;
        nvml_abi_pci_v3 pci{};
        // The driver calls a link that the GPU does not have an invalid argument, and a GPU without any unsupported.
        const int none = link == 0 ? NVML_ABI_NOT_SUPPORTED : NVML_ABI_INVALID_ARGUMENT;
        if (!library.ask(device, {LINK_STATE, link, none}, link, &active) || library.last_code() == none) break;
        if (!active) continue;
        if (library.has(LINK_TYPE) && library.ask(device, {LINK_TYPE, link}, link, &type) &&
            type == NVML_ABI_LINK_SWITCH)
            ends.switches++;
        else if (type == NVML_ABI_LINK_GPU && library.ask(device, {LINK_PCI, link}, link, &pci))
            ends.gpus.emplace_back(pci.id, strnlen(pci.id, sizeof pci.id));
    }
    return ends;
}

} // namespace

// Levels, each better than the one before: 1 the node's processors are in between, 2 one NUMA node, 3 one host bridge,
// 4 PCIe switches, 5 one PCIe switch, 6 one board, 6 + n: n NVLinks, where GPUs on NVSwitches have as many as the one
// that has fewer. 0: unknown, or the GPU itself. Read anew when other GPUs are there: these are hundreds of calls.
void Sampler::read_topology() {
    const auto is_there = [](const Gpu &gpu) { return gpu.device && !gpu.instance && !gpu.gone && !gpu.lost; };
    std::vector<nvml::Device> there;
    for (const Gpu &gpu : gpus_)
        if (is_there(gpu)) there.push_back(gpu.device);
    if (there == attached_) return;
    attached_ = there;
    std::vector<Ends> ends(gpus_.size());
    for (size_t i = 0; i < gpus_.size(); i++) {
        Gpu &gpu = gpus_[i];
        gpu.links.clear();
        if (!is_there(gpu)) continue;
        if (gpu.numa_nodes.empty() && library_.has(AFFINITY)) {
            unsigned long nodes = 0;
            static_assert(8 * sizeof nodes == MAX_NUMA_NODES);
            if (library_.ask(gpu.device, AFFINITY, 1u, &nodes, 0u))
                for (unsigned node = 0; node < MAX_NUMA_NODES; node++)
                    if (nodes >> node & 1) gpu.numa_nodes.push_back(node);
        }
        if (there.size() < 2) continue;
        gpu.links.assign(gpus_.size(), 0);
        ends[i] = ends_of(library_, gpu.device);
    }
    for (size_t i = 0; i < gpus_.size(); i++) {
        for (size_t j = 0; j < i; j++) {
            Gpu &one = gpus_[i], &other = gpus_[j];
            if (one.links.empty() || other.links.empty()) continue;
            int common = 0;
            const auto direct = static_cast<unsigned>(std::count(ends[i].gpus.begin(), ends[i].gpus.end(), other.pci));
            const unsigned links = std::max(direct, std::min(ends[i].switches, ends[j].switches));
            unsigned level = 0;
            if (links) level = NVLINK + links;
            else if (library_.ask(one.device, {ANCESTOR, j}, other.device, &common) && common >= 0)
                level = NVLINK - std::min(static_cast<unsigned>(common) / 10, NVLINK - 1);
            one.links[j] = other.links[i] = level;
        }
    }
}
