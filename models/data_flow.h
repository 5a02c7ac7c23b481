// The data flow between a graph's operators. Apart from models/operator_graph.h, which half of the
// sources include: Boost.Graph takes seconds to parse.
#pragma once

#include <boost/graph/adjacency_list.hpp>

#include "models/operator_graph.h"

namespace tidemark {

// One vertex an operator (forward ++ backward), an edge from the last writer of each storage an
// operator reads.
using DataFlow = boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS>;
DataFlow data_flow(const OperatorGraph& graph);

}  // namespace tidemark
